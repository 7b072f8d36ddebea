"""From a file's names to a model's: tensors under its own names, and weights copied into it.

Names may carry a wrapper's prefix, a list of tensors has no names at all, and Hugging Face has
other names on disk.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, zip_longest
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softleak import io as tensor_files
from softleak.core.errors import ModelError, ShareError
from softleak.core.share import GradientShare
from softleak.io.adapters import by_file_name, in_files, is_adapter
from softleak.io.formats import AVERAGED_WEIGHTS

NUMBERED = re.compile(r"(?:arr_|array_|param_|parameters?[._]|tensor_)?(\d{1,6})")
# What compilation, sharding and checkpointing put into names, at any place.
WRAPPERS = re.compile(r"(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def aligned(share: GradientShare, model: nn.Module) -> GradientShare:
    """Return the share under the model's own names."""
    found, _ = match(share, model)
    return share.without(*(share.keys() - found.keys())).renamed(found)


def own_names(held: Mapping[str, Tensor], model: nn.Module) -> dict[str, str]:
    """Return the model's name of each tensor; a tensor the model lacks keeps its own."""
    found, _ = match(held, model)
    return {name: found.get(name, name) for name in held}


def match(
    held: Mapping[str, Tensor], model: nn.Module
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return the model's name of each tensor that belongs to it, and what is said of the others.

    Names may differ by a prefix on either side, as when one of the two is wrapped: by that under
    which most names and shapes agree. What is not under it, such as a second copy of the weights,
    is left out. Tensors without names are taken in the order of the model's parameters, or of its
    state.

    Raises ``ShareError`` if two readings are equally good.
    """
    own = model.state_dict()
    numbers = {name: int(n[1]) for name in held if (n := NUMBERED.fullmatch(name))}
    if held and len(numbers) == len(held) and not held.keys() & own.keys():
        ordered = sorted(held, key=numbers.__getitem__)
        names = _in_order(model, [held[name] for name in ordered])
        return dict(zip(ordered, names, strict=True)), ()
    bare = by_file_name(own, model, _bare)
    copies = _copies(held, own, bare)
    if not copies:
        return {name: name for name in held}, ()
    theirs, ours = _chosen(copies)
    named = {
        n: n if (rest := _short(n, theirs)) is None else bare.get(ours + rest, n) for n in held
    }
    strange = [n for n in held if named[n] == n and n not in own]
    left, remarks = _left_out(strange, theirs, [prefix for prefix, _ in copies[1:] if prefix])
    return {n: name for n, name in named.items() if n not in left}, remarks


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
    counts = Counter(prefix for name in bare for prefix in _dotted(name))
    common = [prefix for prefix, count in counts.items() if 2 * count > len(bare)]
    named: Counter[Prefixes] = Counter()
    alike: Counter[Prefixes] = Counter()
    for name, tensor in held.items():
        short = in_files(_bare(name))
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


def is_averaged(prefix: str) -> bool:
    """Return whether a name says that its tensors are a running average of weights."""
    return AVERAGED_WEIGHTS.search(prefix) is not None


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


def _bare(name: str) -> str:
    return WRAPPERS.sub("", name)


def _short(name: str, prefix: str) -> str | None:
    """Return a name without wrappers and without a prefix, or None if it lacks the prefix."""
    bare = in_files(_bare(name))
    return bare.removeprefix(prefix) if bare.startswith(prefix) else None


def _dotted(name: str) -> Iterator[str]:
    """Return the empty prefix, ``a.``, ``a.b.``, … of ``a.b.c``."""
    return accumulate((f"{part}." for part in name.split(".")[:-1]), initial="")


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


def pretrained_weights(held: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor] | None:
    """Return weights under the names the library has in memory, converted by the library itself.

    None if the model holds no network of the library, or not all of its weights. Nothing is
    downloaded.
    """
    library: Any = sys.modules.get("transformers")  # a model of it has imported it
    if library is None:
        return None
    networks = ((n, m) for n, m in model.named_modules() if isinstance(m, library.PreTrainedModel))
    name, network = next(networks, ("", None))
    if network is None:
        return None
    try:
        with _silence(library.utils.logging):
            loaded, info = type(network).from_pretrained(
                None, config=network.config, state_dict=dict(held), output_loading_info=True
            )
    except Exception:  # the library raises what it likes for weights of another model
        return None
    if any(info.get(kind) for kind in ("missing_keys", "mismatched_keys", "error_msgs")):
        return None
    prefix = f"{name}." if name else ""
    return {prefix + own: tensor for own, tensor in loaded.state_dict().items()}


@contextmanager
def _silence(log: Any) -> Iterator[None]:  # noqa: ANN401 - the library's own module
    """Keep the library from printing what does not fit; the caller says it in a few lines."""
    before, shown = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(before)
        if shown:
            log.enable_progress_bar()


# BatchNorm counts batches for its cumulative average; inference does not read the count.
_NOT_NEEDED = "num_batches_tracked"
MOST_MISMATCHES = 5  # tensors that do not fit which a message names


def load_weights(model: nn.Module, path: str | PathLike[str]) -> nn.Module:
    """Copy the weights in a file or a folder into a model, or raise ``ModelError``."""
    file = Path(path)
    return copy_weights(model, tensor_files.load(file).tensors, file.name)


def copy_weights(model: nn.Module, held: Mapping[str, Tensor], source: str) -> nn.Module:
    """Copy weights into model whatever wrapper's prefix their names carry, and return it."""
    return copy_state(model, own_weights(held, model), source)


def own_weights(held: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return weights under the model's own names; on disk Hugging Face has others."""
    found = {own: held[name] for name, own in match(held, model)[0].items()}
    if not model.state_dict().keys() - found.keys() or all(map(is_adapter, found)):
        return found
    return pretrained_weights(held, model) or found


def copy_state(model: nn.Module, state: Mapping[str, Tensor], source: str) -> nn.Module:
    """Copy a state dict into model, or raise one ModelError with the mismatches."""
    own = model.state_dict()
    there = {_place(own[key]) for key in own if key in state}
    adapters = any(map(is_adapter, state)) and not any(
        n in own and not is_adapter(n) for n in state
    )
    parts = _adapters(model) if adapters else own
    needed = [k for k in parts if not k.endswith(_NOT_NEEDED) and _place(own[k]) not in there]
    problems = (
        [f"missing: {key} {tuple(own[key].shape)}" for key in needed],
        [f"unexpected: {key} {tuple(v.shape)}" for key, v in state.items() if key not in own],
        [
            f"wrong shape: {key} is {tuple(state[key].shape)}, the model has "
            f"{tuple(own[key].shape)}"
            for key in own
            if key in state and state[key].shape != own[key].shape
        ],
    )
    if any(problems):
        raise ModelError(
            f"The weights in {source} do not fit this {type(model).__name__}. "
            f"Build the model these weights belong to (check classes and head):{_listing(problems)}"
        )
    with torch.no_grad():
        for key, value in state.items():
            own[key].copy_(value)
    return model


def _adapters(model: nn.Module) -> list[str]:
    """Return the parts of a model that a file of adapters alone holds."""
    return [n for n in by_file_name(model.state_dict(), model, _bare).values() if is_adapter(n)]


def _listing(problems: Sequence[Sequence[str]]) -> str:
    """Return the first mismatches, of each kind in turn, and how many more there are."""
    in_turn = [one for row in zip_longest(*problems) for one in row if one is not None]
    more = len(in_turn) - MOST_MISMATCHES
    shown = [*in_turn[:MOST_MISMATCHES], *([f"and {more} more"] if more > 0 else [])]
    return "".join(f"\n  {line}" for line in shown)


def _place(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
    """Return where a tensor is in memory. Tied weights are one tensor, held once by some files."""
    return tensor.data_ptr(), tuple(tensor.shape)
