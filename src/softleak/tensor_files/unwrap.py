"""This module finds the tensors by name in a training checkpoint, which holds more."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from softleak.errors import FileError
from softleak.untrusted_files import shown

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
    """This holds tensors by name, and which part of the file they are if it holds several."""

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
