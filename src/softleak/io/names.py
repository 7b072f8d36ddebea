"""A model's own names for tensors that come under other names.

Names may carry a wrapper's prefix, and a list of tensors has no names at all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor, nn

from softleak.core.errors import ShareError
from softleak.core.share import GradientShare
from softleak.io.checkpoints import is_averaged

NUMBERED = re.compile(r"(?:arr_|array_|param_|parameters?[._]|tensor_)?(\d{1,6})")
# What compilation, sharding and checkpointing put into names, at any place.
WRAPPERS = re.compile(r"(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


@dataclass(frozen=True)
class Match:
    """The model's name of each tensor that belongs to it, and what was left out."""

    names: Mapping[str, str]
    remarks: tuple[str, ...] = ()


def aligned(share: GradientShare, model: nn.Module) -> GradientShare:
    """Return the share under the model's own names."""
    found = match(share, model).names
    return share.without(*(share.keys() - found.keys())).renamed(found)


def own_names(held: Mapping[str, Tensor], model: nn.Module) -> dict[str, str]:
    """Return the model's name of each tensor; a tensor the model lacks keeps its own."""
    found = match(held, model).names
    return {name: found.get(name, name) for name in held}


def match(held: Mapping[str, Tensor], model: nn.Module) -> Match:
    """Find the model's name of each tensor.

    Names may differ by a prefix on either side, as when one of the two is wrapped. The prefixes
    are those under which most names and shapes agree. What is not under the prefix, such as a
    second copy of the weights (a running average) or the buffers of a loss, is left out.

    Tensors without names (``arr_0``, ``arr_1``, … as a list is saved) are taken in the order of
    the model's parameters, or of its whole state, whichever fits in number and shape.

    Raises ``ShareError`` if two readings are equally good.
    """
    own = model.state_dict()
    numbers = {name: int(n[1]) for name in held if (n := NUMBERED.fullmatch(name))}
    if held and len(numbers) == len(held) and not held.keys() & own.keys():
        ordered = sorted(held, key=numbers.__getitem__)
        return Match(dict(zip(ordered, _in_order(model, [held[n] for n in ordered]), strict=True)))
    bare = {WRAPPERS.sub("", name): name for name in own}
    copies = _copies(held, own, bare)
    if not copies:
        return Match({name: name for name in held})
    theirs, ours = _chosen(copies)
    names = {
        n: n if (rest := _short(n, theirs)) is None else bare.get(ours + rest, n) for n in held
    }
    strange = [n for n in held if names[n] == n and n not in own]
    left, remarks = _left_out(strange, theirs, [prefix for prefix, _ in copies[1:] if prefix])
    return Match({n: name for n, name in names.items() if n not in left}, remarks)


def _left_out(
    strange: Sequence[str], theirs: str, others: Sequence[str]
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the tensors that belong to no part of the model, and what is said of them."""
    # The shortest prefix last: it names a copy as a whole, not each of its parts.
    widest_last = sorted(others, key=len, reverse=True)
    copied = {n: prefix for n in strange for prefix in widest_last if _short(n, prefix) is not None}
    outside = [n for n in strange if n not in copied and _short(n, theirs) is None]
    remarks = [
        f"a second copy of the weights, under {prefix!r}, was left out"
        for prefix in dict.fromkeys(copied.values())
    ]
    if outside:
        verb = "tensor not under {!r} was" if len(outside) == 1 else "tensors not under {!r} were"
        remarks.append(f"{len(outside)} {verb.format(theirs)} left out")
    return frozenset([*copied, *outside]), tuple(remarks)


Prefixes = tuple[str, str]  # what is taken off a name held, and what is put in its place


def _copies(
    held: Mapping[str, Tensor], own: Mapping[str, Tensor], bare: Mapping[str, str]
) -> list[Prefixes]:
    """Return the prefixes under which the model is found: the most complete first, then copies."""
    common = _common_prefixes(bare)
    named: Counter[Prefixes] = Counter()
    alike: Counter[Prefixes] = Counter()
    for name, tensor in held.items():
        short = WRAPPERS.sub("", name)
        for theirs in _dotted(short):
            rest = short.removeprefix(theirs)
            for ours in common:
                if ours + rest in bare:
                    named[theirs, ours] += 1
                    alike[theirs, ours] += own[bare[ours + rest]].shape == tensor.shape

    def order(pair: Prefixes) -> tuple[int, int, bool, int, int]:
        return -alike[pair], -named[pair], is_averaged(pair[0]), len(pair[0]), len(pair[1])

    best = sorted((pair for pair in named if alike[pair] or pair == ("", "")), key=order)
    return [pair for pair in best if 2 * alike[pair] >= alike[best[0]]]


def _chosen(copies: Sequence[Prefixes]) -> Prefixes:
    """Return the first; raises if another is as good a reading and neither is an average."""
    first, rest = copies[0], copies[1:]
    apart = [p for p, _ in rest if not p.startswith(first[0]) and not first[0].startswith(p)]
    rivals = [prefix for prefix in apart if not is_averaged(prefix)]
    if rivals and not is_averaged(first[0]):
        raise ShareError(
            f"the tensors under {first[0]!r} and under {rivals[0]!r} stand for the same parameters "
            "of the model; keep those of one prefix"
        )
    return first


def _short(name: str, prefix: str) -> str | None:
    """Return a name without wrappers and without a prefix, or None if it lacks the prefix."""
    bare = WRAPPERS.sub("", name)
    return bare.removeprefix(prefix) if bare.startswith(prefix) else None


def _common_prefixes(names: Iterable[str]) -> list[str]:
    """Return the dotted prefixes that most names have, the empty one first."""
    every = list(names)
    counts = Counter(prefix for name in every for prefix in _dotted(name))
    return [prefix for prefix, count in counts.items() if 2 * count > len(every)]


def _dotted(name: str) -> Iterator[str]:
    """Yield the empty prefix, ``a.``, ``a.b.``, … of ``a.b.c``."""
    yield ""
    yield from accumulate(f"{part}." for part in name.split(".")[:-1])


def _in_order(model: nn.Module, arrays: Sequence[Tensor]) -> list[str]:
    """Return the names behind a list of arrays."""
    parameters = dict(model.named_parameters())
    trainable = {name: p for name, p in parameters.items() if p.requires_grad}
    state = model.state_dict()
    # Counters of a state are integers, which no share holds.
    floats = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
    shapes = [tuple(array.shape) for array in arrays]
    for candidate in (trainable, parameters, floats, state):
        if [tuple(tensor.shape) for tensor in candidate.values()] == shapes:
            return list(candidate)
    raise ShareError(
        f"got a list of {len(arrays)} arrays without names, which fits neither the model's "
        f"{len(parameters)} parameters nor its state of {len(state)} tensors in number and shape; "
        "is it of this model?"
    )
