"""This module reads folders as ``save_pretrained`` of Hugging Face writes them.

Such a folder holds one file, or shards with an index.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from softleak.errors import FileError
from softleak.untrusted_files import FILE_LIMITS, shown

INDEX = ".index.json"
INDEX_FILES = (f"model.safetensors{INDEX}", f"pytorch_model.bin{INDEX}")
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
MOST_SHARDS = 10_000


def is_checkpoint_folder(path: Path) -> bool:
    """Return whether a folder is one checkpoint, not a collection of files."""
    return path.is_dir() and _named(path) is not None


def checkpoint_file(folder: Path) -> Path:
    """Return the file that says where the weights are: an index, or the weights."""
    found = _named(folder)
    if found is None:
        raise FileError(
            f"the folder {shown(folder.name)} is not a checkpoint: expected one of "
            f"{', '.join((*INDEX_FILES, *WEIGHT_FILES))} in it; name the file itself"
        )
    return found


def _named(folder: Path) -> Path | None:
    return next((folder / n for n in (*INDEX_FILES, *WEIGHT_FILES) if (folder / n).is_file()), None)


def read_index(path: Path) -> Mapping[Path, frozenset[str]]:
    """Return the shards that an index lists, and the names of the tensors each is to hold."""
    size, most = path.stat().st_size, FILE_LIMITS.header_bytes
    if size > most:
        raise FileError(f"it has {size} bytes; an index has at most {most}")
    data = json.loads(path.read_text("utf-8"))
    listed = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise FileError("it has no weight_map, in which an index lists the file of each tensor")
    shards: dict[Path, set[str]] = {}
    for name, file in listed.items():
        shards.setdefault(path.parent / _checked(file), set()).add(name)
    if len(shards) > MOST_SHARDS:
        raise FileError(f"it lists {len(shards)} files; at most {MOST_SHARDS} are read")
    return {shard: frozenset(names) for shard, names in shards.items()}


def _checked(file: object) -> str:
    """Return a name that an index may list: a file of tensors in the index's own folder."""
    if not isinstance(file, str) or not file or Path(file).name != file or "\\" in file:
        raise FileError(
            f"it names the file {shown(str(file))!r}; only files in its own folder are read"
        )
    if file in (".", "..") or file.endswith(".json") or not file.isprintable():
        raise FileError(f"it names {shown(file)!r}, which is not a file of tensors")
    return file
