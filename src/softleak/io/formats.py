"""Files of tensors by name in three formats: what they hold, reading, writing, fingerprints.

Of a checkpoint the weights are read: the right dict of a file, or the shards of a folder as
``save_pretrained`` of Hugging Face writes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from softleak.core.errors import FileError, in_a_line
from softleak.core.input_spec import InputPart, InputSpec, Layout
from softleak.io.adapters import ADAPTER_FILES
from softleak.io.atomic import replacing
from softleak.io.untrusted import (
    MOST_FILE_BYTES,
    MOST_HEADER_BYTES,
    check_content,
    check_file,
    check_npz,
    check_safetensors,
    check_tensors,
    check_zip,
    checked_shape,
    shown,
)

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


Tensors = dict[str, Tensor]
Remarks = tuple[str, ...]


def unwrap(content: object) -> tuple[Tensors, Remarks]:
    """Return the tensors by name in what ``torch.load`` returned, and which part of it they are.

    A list of tensors is numbered, in the order of the model; without any ``FileError`` is raised.
    """
    if isinstance(content, list | tuple):
        return _numbered(content), ()
    if not isinstance(content, Mapping):
        raise FileError(f"it should hold a dict of tensors, holds {type(content).__name__}")
    groups = dict(_groups(content, (), NESTING_DEPTH))
    if not groups:
        raise FileError("it holds no tensors; expected a dict of tensors by name")
    plain = {path: g for path, g in groups.items() if not AVERAGED_WEIGHTS.search(".".join(path))}
    if not plain:
        return _joined(groups), ("the file holds averaged weights only (EMA or SWA)",)
    averaged = [shown(".".join(path)) for path in groups if path not in plain]
    return _joined(plain), tuple(
        f"the file also holds averaged weights ({n}); the plain ones were read" for n in averaged
    )


Keys = tuple[str, ...]


def _groups(
    content: Mapping[object, object], path: Keys, depth: int
) -> Iterator[tuple[Keys, Tensors]]:
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


def _within(value: object, path: Keys, depth: int) -> Iterator[tuple[Keys, Tensors]]:
    if isinstance(value, Mapping):
        yield from _groups(value, path, depth - 1) if depth else ()
    elif isinstance(value, list | tuple):
        held = [one for one in value if one is not None]  # None: a parameter without a gradient
        if held and all(isinstance(one, Tensor) for one in held):
            yield path, _numbered(value)


def _joined(groups: Mapping[Keys, Tensors]) -> Tensors:
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


def _flat(groups: Mapping[Keys, Tensors], wrappers: set[str]) -> Tensors:
    """Return parts of a model saved apart, such as ``encoder`` and ``head``, in one dict."""
    return {
        ".".join([*(part for part in path if part not in wrappers), name]): tensor
        for path, group in groups.items()
        for name, tensor in group.items()
    }


def _numbered(content: Sequence[object]) -> Tensors:
    given = [one for one in content if one is not None]
    strange = [type(one).__name__ for one in given if not isinstance(one, Tensor)]
    if strange or not given:
        kinds = ", ".join(dict.fromkeys(strange)) or "nothing"
        raise FileError(f"it should hold a list of tensors in the model's order, holds {kinds}")
    return {f"arr_{i}": one for i, one in enumerate(given) if isinstance(one, Tensor)}


INDEX = ".index.json"
INDEX_FILES = (f"model.safetensors{INDEX}", f"pytorch_model.bin{INDEX}")
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", *ADAPTER_FILES)
MOST_SHARDS = 10_000


def is_checkpoint_folder(path: Path) -> bool:
    """Return whether a folder is one checkpoint, not a collection of files."""
    return path.is_dir() and _named(path) is not None


def _named(folder: Path) -> Path | None:
    return next((folder / n for n in (*INDEX_FILES, *WEIGHT_FILES) if (folder / n).is_file()), None)


def _file_of(path: Path) -> Path:
    """Return the file itself; of a folder the one that says where the weights are."""
    if not os.path.isdir(path):
        return path
    found = _named(path)
    if found is None:
        raise FileError(
            f"the folder {shown(path.name)} is not a checkpoint: expected one of "
            f"{', '.join((*INDEX_FILES, *WEIGHT_FILES))} in it; name the file itself"
        )
    return found


META = "softleak"  # where our own facts about a share live inside each format
MOST_PARTS = 16  # tensors of one input
MOST_ROWS = 1 << 28  # of a table of embeddings


@dataclass(frozen=True)
class Content:
    """What a file holds; its facts are the fields of ``GradientShare`` with these names."""

    tensors: Mapping[str, Tensor]  # the tensors by name
    input_shape: Layout | None = None  # the layout of one input, if the file records it
    rounding: Mapping[str, float] = field(default_factory=dict)  # error per entry, by name
    scale: str | None = None  # "known" or "unknown", if the file says it
    precision: str | None = None  # the number format the client computed in, if the file says it
    client: str | None = None  # the local training, as ``made_by`` of a share writes it
    remarks: Remarks = ()  # which part of the file was taken, if it holds several sets of weights

    @property
    def facts(self) -> str:
        """Return everything but the tensors, as it is written beside them."""
        return json.dumps(
            {
                "input_shape": _written(self.input_shape), "rounding": dict(self.rounding),
                "scale": self.scale, "precision": self.precision, "client": self.client,
            }
        )  # fmt: skip

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], meta: str, remarks: Remarks) -> Content:
        """Return tensors with the facts beside them, checked as if a stranger had written them."""
        facts = json.loads(meta) if meta else {}
        told = {name: facts.get(name) for name in ("scale", "precision", "client")}
        if any(value is not None and not isinstance(value, str) for value in told.values()):
            raise FileError(f"its facts should be words, got {told}")
        rounding = {str(k): float(v) for k, v in facts.get("rounding", {}).items()}
        shape = _read(facts.get("input_shape"))
        return cls(tensors, shape, rounding, **told, remarks=remarks)


def _written(layout: Layout | None) -> object:
    """Return a layout as JSON can hold it: a list of sizes, or the parts of a specification."""
    if not isinstance(layout, InputSpec):
        return layout
    return {"parts": [[p.keyword, p.shape, p.integer, p.below] for p in layout.parts]}


def _read(held: object) -> Layout | None:
    """Return the layout that a file claims; raises ``FileError`` if it is not a possible one."""
    if not isinstance(held, dict):
        return checked_shape(held)
    parts = held.get("parts")
    if not isinstance(parts, list) or not 0 < len(parts) <= MOST_PARTS:
        raise FileError(f"its input should have from 1 to {MOST_PARTS} parts")
    return InputSpec(tuple(_read_part(part) for part in parts))


def _read_part(part: object) -> InputPart:
    if not isinstance(part, list) or len(part) != 4:
        raise FileError(f"a part of its input should have a name, sizes and a kind, got {part!r}")
    keyword, sizes, integer, below = part
    named = isinstance(keyword, str) and (not keyword or keyword.isidentifier())
    counted = below is None or (type(below) is int and 0 < below <= MOST_ROWS)
    if not named or not isinstance(integer, bool) or not counted:
        raise FileError(f"a part of its input is not one that a model takes: {part!r}")
    return InputPart(keyword, checked_shape(sizes) or (), integer, below)


@dataclass(frozen=True)
class Format:
    """One format; ``check`` looks at what a file claims before ``read`` takes memory."""

    check: Callable[[Path], None]
    read: Callable[[Path], tuple[Tensors, str, Remarks]]  # what it holds, our facts, and remarks
    write: Callable[[Path, Tensors, str], None]


def format_of(path: Path) -> Format:
    """Return the format that a file's ending says; raises ``FileError`` for another ending."""
    if path.suffix not in _FORMATS:
        raise FileError(f"expected a file ending in {ENDINGS}; got {shown(path.name)!r}")
    return _FORMATS[path.suffix]


def _read_safetensors(path: Path) -> tuple[Tensors, str, Remarks]:
    with safetensors.safe_open(path, framework="pt") as file:
        meta = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return tensors, meta.get(META, ""), ()


def _write_safetensors(path: Path, tensors: Tensors, meta: str) -> None:
    safetensors.torch.save_file(tensors, path, metadata={META: meta})


def _read_pt(path: Path) -> tuple[Tensors, str, Remarks]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise FileError(
            "it holds Python objects other than tensors and plain values, which are not loaded; "
            "save the state_dict alone"
        ) from error
    meta = content.get(META, "") if isinstance(content, Mapping) else ""
    tensors, remarks = unwrap(content)
    return tensors, meta if isinstance(meta, str) else "", remarks


def _write_pt(path: Path, tensors: Tensors, meta: str) -> None:
    torch.save({"gradients": tensors, META: meta}, path)


def _read_npz(path: Path) -> tuple[Tensors, str, Remarks]:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    meta = arrays.pop(META, np.array("")).item()
    native = {n: a.astype(a.dtype.newbyteorder("="), copy=False) for n, a in arrays.items()}
    return {name: torch.from_numpy(array) for name, array in native.items()}, str(meta), ()


def _write_npz(path: Path, tensors: Tensors, meta: str) -> None:
    if any(tensor.dtype == torch.bfloat16 for tensor in tensors.values()):
        raise FileError("an .npz file cannot hold bfloat16; save as .safetensors or .pt")
    if tensors.keys() & {META, "file"}:
        raise FileError(f'an .npz file cannot hold tensors named "{META}" or "file"; save as .pt')
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays, **{META: np.array(meta)})


_TORCH = Format(check_zip, _read_pt, _write_pt)
_FORMATS: Mapping[str, Format] = {
    ".safetensors": Format(check_safetensors, _read_safetensors, _write_safetensors),
    ".pt": _TORCH,
    ".pth": _TORCH,
    ".bin": _TORCH,
    ".ckpt": _TORCH,
    ".npz": Format(check_npz, _read_npz, _write_npz),
}
ENDINGS = ", ".join(_FORMATS)


def load(path: Path) -> Content:
    """Return what a file, by its ending, or a Hugging Face folder holds; it need not be trusted.

    Raises ``FileError`` if it is damaged, too large, or holds anything but tensors.
    """
    file = _file_of(path)
    return _sharded(file) if file.name.endswith(INDEX) else _single(file)


def parts(path: Path) -> tuple[Path, ...]:
    """Return the files that are read for a path: itself, or those of a folder."""
    file = _file_of(path)
    return (file, *sorted(_index(file))) if file.name.endswith(INDEX) else (file,)


def save(path: Path, content: Content) -> None:
    """Write tensors and facts in the format of the path's ending, whole or not at all."""
    writer = format_of(path).write
    # Copies: tensors that share memory, as tied weights do, are refused by some formats.
    ready = {n: tensor.detach().cpu().clone().contiguous() for n, tensor in content.tensors.items()}
    with replacing(path) as temporary:
        writer(temporary, ready, content.facts)


def _single(path: Path) -> Content:
    form = format_of(path)
    check_file(path)
    try:
        check_content(path)
        form.check(path)
        tensors, meta, remarks = form.read(path)
        check_tensors(tensors)
        return Content.of(tensors, meta, remarks)
    except Exception as error:  # the formats and their decompressors each raise their own
        raise _refusal(path, f"a readable {path.suffix} file of tensors by name", error) from error


def _sharded(index: Path) -> Content:
    """Return the tensors an index lists, each from the file it names."""
    tensors: Tensors = {}
    shards = _index(index)
    for shard in shards:
        check_file(shard)
    size = sum(shard.stat().st_size for shard in shards)
    if size > MOST_FILE_BYTES:
        raise FileError(
            f"the shards of {shown(index.name)} have {size} bytes, more than the "
            f"{MOST_FILE_BYTES} that are read"
        )
    for shard, names in shards.items():
        held = _single(shard).tensors
        lacking = sorted(names - held.keys())
        if lacking:
            raise FileError(
                f"{shown(index.name)} says that {shown(shard.name)} holds "
                f"{shown(lacking[0])!r}, which it does not"
            )
        tensors |= {name: held[name] for name in sorted(names)}
    return Content(tensors)


def _index(index: Path) -> Mapping[Path, frozenset[str]]:
    """Return the shards that an index lists, and the names of the tensors each is to hold."""
    check_file(index)
    try:
        return _read_index(index)
    except Exception as error:  # JSON of a stranger: too deep, not UTF-8, cut off
        raise _refusal(index, "a readable index of shards", error) from error


def _read_index(path: Path) -> Mapping[Path, frozenset[str]]:
    size, most = path.stat().st_size, MOST_HEADER_BYTES
    if size > most:
        raise FileError(f"it has {size} bytes; an index has at most {most}")
    data = json.loads(path.read_text("utf-8"))
    listed = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise FileError("it has no weight_map, in which an index lists the file of each tensor")
    shards: dict[Path, set[str]] = {}
    for name, file in listed.items():
        if not isinstance(file, str) or not file or Path(file).name != file or "\\" in file:
            raise FileError(
                f"it names the file {shown(str(file))!r}; only files in its own folder are read"
            )
        if file in (".", "..") or file.endswith(".json") or not file.isprintable():
            raise FileError(f"it names {shown(file)!r}, which is not a file of tensors")
        shards.setdefault(path.parent / file, set()).add(name)
    if len(shards) > MOST_SHARDS:
        raise FileError(f"it lists {len(shards)} files; at most {MOST_SHARDS} are read")
    return {shard: frozenset(names) for shard, names in shards.items()}


def _refusal(path: Path, what: str, error: Exception) -> FileError:
    reason = shown(in_a_line(error))
    hint = (
        "" if isinstance(error, FileError)
        else "; it may be truncated, or hold objects other than tensors, which are refused"
    )  # fmt: skip
    return FileError(f"{shown(path.name)} is not {what} ({reason}){hint}")


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file, or of the files of a sharded one, one after the other."""
    digest = hashlib.sha256()
    for part in parts(path):
        with part.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors by name: of names, shapes, number formats and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
