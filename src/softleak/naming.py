"""Tensors under other names: wrappers' prefixes, and lists in the order of the model."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence

from torch import Tensor, nn

from softleak.errors import ShareError
from softleak.share import GradientShare

PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "_module.")  # what wrappers put in front
NUMBERED = re.compile(r"(?:arr_|array_|param_|parameters?[._]|tensor_)?(\d{1,6})")


def aligned(share: GradientShare, model: nn.Module) -> GradientShare:
    """The share under the model's own names."""
    return share.renamed(own_names(share, model))


def own_names(held: Mapping[str, Tensor], model: nn.Module) -> dict[str, str]:
    """The model's name of each tensor held; what it does not have keeps its own.

    Arrays without names (``arr_0``, ``arr_1``, … as a list of arrays is saved) are taken in the
    order of the model's parameters, or of its whole state, whichever fits in number and shape.
    """
    own = model.state_dict().keys()
    if held.keys() & own:
        return {name: name for name in held}
    numbers = {name: int(n[1]) for name in held if (n := NUMBERED.fullmatch(name))}
    if held and len(numbers) == len(held):
        ordered = sorted(held, key=numbers.__getitem__)
        return dict(zip(ordered, _in_order(model, [held[n] for n in ordered]), strict=True))
    names = {name: _bare(name, own) for name in held}
    if len(set(names.values())) < len(names):
        raise ShareError("two tensors have one name once the prefix of a wrapper is taken off")
    return names


def _bare(name: str, own: Container[str]) -> str:
    bare = name
    while bare not in own:
        prefix = next((p for p in PREFIXES if bare.startswith(p)), None)
        if prefix is None:
            return name
        bare = bare.removeprefix(prefix)
    return bare


def _in_order(model: nn.Module, arrays: Sequence[Tensor]) -> list[str]:
    """The names behind a list of arrays."""
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
