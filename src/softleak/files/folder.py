"""A folder as ``save_pretrained`` of Hugging Face writes it: one file, or shards with an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from softleak.errors import FileError
from softleak.precheck import HEADER, shown

INDEX = ".index.json"
INDICES = (f"model.safetensors{INDEX}", f"pytorch_model.bin{INDEX}")
SINGLE = ("model.safetensors", "pytorch_model.bin")
SHARDS = 10_000


def is_checkpoint_folder(path: Path) -> bool:
    """Whether a folder is one checkpoint, not a collection of files."""
    return path.is_dir() and _named(path) is not None


def checkpoint_file(folder: Path) -> Path:
    """The file in a folder that says where the weights are: an index, or the weights."""
    found = _named(folder)
    if found is None:
        raise FileError(
            f"the folder {shown(folder.name)} is not a checkpoint: expected one of "
            f"{', '.join((*INDICES, *SINGLE))} in it; name the file itself"
        )
    return found


def _named(folder: Path) -> Path | None:
    return next((folder / n for n in (*INDICES, *SINGLE) if (folder / n).is_file()), None)


def read_index(path: Path) -> Mapping[Path, frozenset[str]]:
    """The shards that an index lists, and the names of the tensors each is to hold."""
    if path.stat().st_size > HEADER:
        raise FileError(f"it has {path.stat().st_size} bytes, where an index has at most {HEADER}")
    data = json.loads(path.read_text("utf-8"))
    listed = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise FileError("it has no weight_map, in which an index lists the file of each tensor")
    shards: dict[Path, set[str]] = {}
    for name, file in listed.items():
        shards.setdefault(path.parent / _checked(file), set()).add(name)
    if len(shards) > SHARDS:
        raise FileError(f"it lists {len(shards)} files; at most {SHARDS} are read")
    return {shard: frozenset(names) for shard, names in shards.items()}


def _checked(file: object) -> str:
    """A file's name as an index may say it: in the index's own folder, and no index itself."""
    if not isinstance(file, str) or not file or Path(file).name != file or "\\" in file:
        raise FileError(
            f"it names the file {shown(str(file))!r}; only files in its own folder are read"
        )
    if file in (".", "..") or file.endswith(".json") or not file.isprintable():
        raise FileError(f"it names {shown(file)!r}, which is no file of tensors")
    return file
