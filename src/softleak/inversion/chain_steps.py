"""This module finds the step with which to walk back through one node of a traced model."""

from __future__ import annotations

import math

import torch
from torch import fx, nn

from softleak.errors import ModelError
from softleak.inversion.activation_step import ActivationStep
from softleak.inversion.conv import CONV_SETTINGS, Conv
from softleak.inversion.functional import as_affine, as_module
from softleak.inversion.geometry import padding_of
from softleak.inversion.graph import called, check_mode, shape_of
from softleak.inversion.inverse_activations import inverse_of
from softleak.inversion.linear import Linear
from softleak.inversion.lossless import Affine, Reshape
from softleak.inversion.pool import Pool
from softleak.inversion.step import REMEDY, Step

RESHAPES = {torch.flatten, "flatten", "view", "reshape", torch.reshape}


def step_of(model: nn.Module, node: fx.Node, before: tuple[int, ...]) -> Step:
    """Return the step behind a node of the graph.

    Args:
        model: The traced model.
        node: The node, which has one tensor for its input.
        before: The shape of that input, without the batch.

    Raises:
        ModelError: If the node cannot be walked back through.
    """
    name, after = str(node.target), shape_of(node)
    if node.op == "call_module":
        return _module_step(name, model.get_submodule(name), before, after)
    module = as_module(node)
    if module is not None:
        check_mode(node.name, module)
        return _module_step(node.name, module, before, after)
    affine = as_affine(model, node, before)
    if affine is not None:
        return affine
    if node.target in RESHAPES and math.prod(after) == math.prod(before):
        return Reshape(node.name, before, after)
    raise ModelError(
        f"cannot walk back through {node.name} ({called(node)}): softleak has no exact inverse of "
        f"it; {REMEDY}"
    )


def _module_step(
    name: str, module: nn.Module, before: tuple[int, ...], after: tuple[int, ...]
) -> Step:
    """Return the step of a module, for inputs and outputs of one shape."""
    phi = inverse_of(module)
    if phi is not None:
        return ActivationStep(name, phi)
    match module:
        case nn.Linear() if len(before) == 1:
            return Linear(name, module.weight.detach(), module.bias is not None)
        case nn.Conv2d() if _can_invert(name, module, before):
            return Conv.of(name, module, (before[0], before[1], before[2]))
        case nn.BatchNorm2d() | nn.BatchNorm1d() if module.running_mean is not None:
            return Affine.of(name, module, before)
        case nn.Flatten() | nn.Identity() | nn.Dropout() | nn.Dropout2d():
            return Reshape(name, before, after)
        case nn.AvgPool2d() | nn.AdaptiveAvgPool2d():
            return Pool.of(name, module, before)
        case _:
            kind = type(module).__name__
            raise ModelError(
                f"cannot walk back through {name} ({kind}) with inputs of shape {before}: softleak "
                f"has no exact inverse of it; {REMEDY}"
            )


def _can_invert(name: str, layer: nn.Conv2d, before: tuple[int, ...]) -> bool:
    """Tell whether a convolution's input is (C, H, W), and refuse what cannot be solved."""
    if layer.padding_mode != "zeros" or padding_of(layer) is None:
        raise ModelError(
            f"cannot walk back through {name} (Conv2d): expected zero padding, the same on both "
            f"sides, got {layer.padding_mode}, {layer.padding!r}; {REMEDY}"
        )
    if math.prod(before) > CONV_SETTINGS.most_inputs:
        raise ModelError(
            f"cannot walk back through {name} (Conv2d): expected at most "
            f"{CONV_SETTINGS.most_inputs} inputs, got {math.prod(before)}; {REMEDY}"
        )
    return len(before) == 3
