"""The weights within a checkpoint: the right dict of a file, the shards of a folder.

Folders are as ``save_pretrained`` of Hugging Face writes them: one file, or shards with an index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from softleak.core.errors import FileError
from softleak.io.untrusted import MOST_HEADER_BYTES, shown

NESTING_DEPTH = 6  # of dicts within dicts
# What usual training scripts call the weights, in the order in which they are preferred.
WEIGHT_KEYS = (
    "state_dict", "model_state_dict", "model_state", "model", "module", "net", "network",
    "weights", "params", "parameters", "gradients", "grads", "gradient", "delta",
)  # fmt: skip
# What stands beside the weights and is none: states of optimisers, schedules, hyperparameters.
NOT_WEIGHTS = re.compile(
    r"optim|sched|scaler|hyper|hparam|callback|loops|rng|config|args|history", re.I
)
AVERAGED_WEIGHTS = re.compile(r"(^|[._-])(ema|swa|averaged?|shadow)([._-]|\d|$)", re.I)


@dataclass(frozen=True)
class Unwrapped:
    """Tensors by name, and which part of the file they are if it holds several."""

    tensors: dict[str, Tensor]
    remarks: tuple[str, ...] = ()


def unwrap(content: object) -> Unwrapped:
    """Return the tensors by name in what ``torch.load`` returned.

    A list of tensors has no names: they are numbered, and taken in the order of the model. Raises
    ``FileError`` if there are no tensors.
    """
    if isinstance(content, list | tuple):
        return Unwrapped(_numbered(content))
    if not isinstance(content, Mapping):
        raise FileError(f"it should hold a dict of tensors, holds {type(content).__name__}")
    groups = dict(_groups(content, (), NESTING_DEPTH))
    if not groups:
        raise FileError("it holds no tensors; expected a dict of tensors by name")
    plain = {path: g for path, g in groups.items() if not AVERAGED_WEIGHTS.search(".".join(path))}
    if not plain:
        return Unwrapped(_joined(groups), ("the file holds averaged weights only (EMA or SWA)",))
    averaged = [shown(".".join(path)) for path in groups if path not in plain]
    remarks = tuple(
        f"the file also holds averaged weights ({n}); the plain ones were read" for n in averaged
    )
    return Unwrapped(_joined(plain), tuple(remarks))


def is_averaged(prefix: str) -> bool:
    """Return whether a name says that its tensors are a running average of weights."""
    return AVERAGED_WEIGHTS.search(prefix) is not None


Keys = tuple[str, ...]


def _groups(
    content: Mapping[object, object], path: Keys, depth: int
) -> Iterator[tuple[Keys, dict[str, Tensor]]]:
    """Yield every set of tensors by name, however deep; in a dict of dicts only those count."""
    nested = {
        str(key): value
        for key, value in content.items()
        if isinstance(value, Mapping | list | tuple) and not NOT_WEIGHTS.search(str(key))
    }
    inner = [pair for key, value in nested.items() for pair in _within(value, (*path, key), depth)]
    if inner:
        yield from inner
        return
    tensors = {str(name): t for name, t in content.items() if isinstance(t, Tensor)}
    if tensors:
        yield path, tensors


def _within(value: object, path: Keys, depth: int) -> Iterator[tuple[Keys, dict[str, Tensor]]]:
    if isinstance(value, Mapping):
        yield from _groups(value, path, depth - 1) if depth else ()
    elif isinstance(value, list | tuple) and _in_order(value):
        yield path, _numbered(value)


def _in_order(values: Sequence[object]) -> bool:
    """Return whether a list holds tensors, and None for parameters without a gradient."""
    held = [one is None or isinstance(one, Tensor) for one in values]
    return all(held) and any(one is not None for one in values)


def _joined(groups: Mapping[Keys, dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the only set of tensors, the one called the weights, or all under their own names."""
    if len(groups) == 1:
        return next(iter(groups.values()))
    for name in WEIGHT_KEYS:
        known = {path: group for path, group in groups.items() if name in path}
        if len(known) == 1:
            return next(iter(known.values()))
        if known:
            return _flat(known, {part for path in known for part in path[: path.index(name) + 1]})
    return _flat(groups, set())


def _flat(groups: Mapping[Keys, dict[str, Tensor]], wrappers: set[str]) -> dict[str, Tensor]:
    """Return parts of a model saved apart, such as ``encoder`` and ``head``, in one dict."""
    return {
        ".".join([*(part for part in path if part not in wrappers), name]): tensor
        for path, group in groups.items()
        for name, tensor in group.items()
    }


def _numbered(content: Sequence[object]) -> dict[str, Tensor]:
    given = [one for one in content if one is not None]
    strange = [type(one).__name__ for one in given if not isinstance(one, Tensor)]
    if strange or not given:
        kinds = ", ".join(dict.fromkeys(strange)) or "nothing"
        raise FileError(f"it should hold a list of tensors in the model's order, holds {kinds}")
    return {f"arr_{i}": one for i, one in enumerate(given) if isinstance(one, Tensor)}


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
    size, most = path.stat().st_size, MOST_HEADER_BYTES
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
