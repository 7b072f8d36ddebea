"""This module loads and saves one file or a folder of shards, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from softleak.atomic import replacing
from softleak.errors import FileError, in_a_line
from softleak.tensor_files.content import Content
from softleak.tensor_files.formats import format_of
from softleak.tensor_files.pretrained_folder import INDEX, checkpoint_file, read_index
from softleak.untrusted_files import FILE_LIMITS, check_content, check_file, check_tensors, shown


def load(path: Path) -> Content:
    """Read a file by its ending, or a Hugging Face folder.

    Args:
        path: the file or folder; it need not be trusted.

    Returns:
        The tensors by name and the facts beside them. Raises ``FileError`` with the reason if the
        file is damaged, too large, or holds anything but tensors.
    """
    file = checkpoint_file(path) if os.path.isdir(path) else path
    if file.name.endswith(INDEX):
        return _sharded(file)
    return _single(file)


def parts(path: Path) -> tuple[Path, ...]:
    """Return the files that are read for a path: itself, or those of a folder."""
    file = checkpoint_file(path) if os.path.isdir(path) else path
    if not file.name.endswith(INDEX):
        return (file,)
    return (file, *sorted(_index(file)))


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
        held, meta = form.read(path)
        check_tensors(held.tensors)
        return Content.of(held.tensors, meta, held.remarks)
    except Exception as error:  # the formats and their decompressors each raise their own
        raise _refusal(path, f"a readable {path.suffix} file of tensors by name", error) from error


def _sharded(index: Path) -> Content:
    """Return the tensors an index lists, each from the file it names."""
    tensors: dict[str, Tensor] = {}
    shards = _index(index)
    for shard in shards:
        check_file(shard)
    size = sum(shard.stat().st_size for shard in shards)
    if size > FILE_LIMITS.file_bytes:
        raise FileError(
            f"the shards of {shown(index.name)} have {size} bytes, more than the "
            f"{FILE_LIMITS.file_bytes} that are read"
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
    check_file(index)
    try:
        return read_index(index)
    except Exception as error:  # JSON of a stranger: too deep, not UTF-8, cut off
        raise _refusal(index, "a readable index of shards", error) from error


def _refusal(path: Path, what: str, error: Exception) -> FileError:
    reason = shown(in_a_line(error))
    hint = (
        "" if isinstance(error, FileError)
        else "; it may be truncated, or hold objects other than tensors, which are refused"
    )  # fmt: skip
    return FileError(f"{shown(path.name)} is not {what} ({reason}){hint}")
