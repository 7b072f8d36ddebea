"""A model as a chain of steps that can be walked back; any other layer is refused, and named."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import fx, nn

from softleak.errors import ModelError
from softleak.head import Head
from softleak.inversion.activations import inverse_of
from softleak.inversion.conv import Conv
from softleak.inversion.functional import as_affine, as_module
from softleak.inversion.geometry import padding_of
from softleak.inversion.graph import called, check_mode, path_back, shape_of
from softleak.inversion.linear import Linear
from softleak.inversion.pointwise import Activation
from softleak.inversion.pool import Pool
from softleak.inversion.simple import Affine, Reshape
from softleak.inversion.step import REMEDY, Step

LARGEST = 12288  # unknowns of one convolution: a matrix of their square is held in memory
RESHAPES = {torch.flatten, "flatten", "view", "reshape", torch.reshape}
LOG_SOFTMAX = {F.log_softmax, torch.log_softmax, "log_softmax"}


@dataclass(frozen=True, eq=False)
class Chain:
    """The layers before the head, from the last to the first, ready to be walked back."""

    head: Head
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, model: nn.Module, head: Head, input_shape: tuple[int, ...]) -> Chain:
        """Trace a model in eval mode for inputs of one shape."""
        path = path_back(model, input_shape)
        if _is_log_softmax(model, path[0]):
            path = path[1:]
        if path[0].op != "call_module" or str(path[0].target) != head.name:
            raise ModelError(f"the output does not come from the head {head.name!r}; {REMEDY}")
        _check_sharing(model, path)
        steps: list[Step] = []
        for node, before in pairwise(path[1:]):
            step = _step(model, node, shape_of(before))
            _check_order(step, steps)
            steps.append(step)
        return cls(head, tuple(_marked(steps)))

    @property
    def passes(self) -> tuple[tuple[Step, ...], ...]:
        """Ways to walk back, the cheaper one first if there is one."""
        quick = tuple(
            replace(s, quick=True) if isinstance(s, Conv) and not s.quick else s for s in self.steps
        )
        return (self.steps,) if quick == self.steps else (quick, self.steps)


def _is_log_softmax(model: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(model.get_submodule(str(node.target)), nn.LogSoftmax)
    return node.target in LOG_SOFTMAX


def _check_sharing(model: nn.Module, path: list[fx.Node]) -> None:
    """The gradient of a parameter that is used twice is the sum of two, and tells neither."""
    seen: set[int] = set()
    for name in (str(node.target) for node in path if node.op == "call_module"):
        used = {id(parameter) for parameter in model.get_submodule(name).parameters()}
        if used & seen:
            raise ModelError(f"the parameters of {name!r} are used more than once; {REMEDY}")
        seen |= used


def _marked(steps: list[Step]) -> list[Step]:
    """With the lowest fully connected layer spared what none below it needs."""
    heavy = [i for i, step in enumerate(steps) if isinstance(step, Linear | Conv)]
    last = steps[heavy[-1]] if heavy else None
    if isinstance(last, Linear):
        steps[heavy[-1]] = replace(last, lowest=True)
    return steps


def _check_order(step: Step, above: list[Step]) -> None:
    """Averages of an activation's outputs say nothing of each of them."""
    telling = [s for s in above if not isinstance(s, Reshape | Affine)]
    last = telling[-1] if telling else None
    if isinstance(step, Activation) and isinstance(last, Pool) and not last.injective:
        raise ModelError(
            f"cannot walk back through {last.name}: it averages the outputs of an activation "
            f"({step.name}), which are then not known one by one; {REMEDY}"
        )


def _step(model: nn.Module, node: fx.Node, before: tuple[int, ...]) -> Step:
    """The step behind a node of the graph."""
    name, target = str(node.target), node.target
    if node.op == "call_module":
        return _module_step(name, model.get_submodule(name), before)
    module = as_module(node)
    if module is not None:
        check_mode(node.name, module)
        return _module_step(node.name, module, before)
    affine = as_affine(model, node, before)
    if affine is not None:
        return affine
    if target in RESHAPES and math.prod(shape_of(node)) == math.prod(before):
        return Reshape(node.name, before)
    raise ModelError(f"cannot walk back through {node.name} ({called(node)}); {REMEDY}")


def _module_step(name: str, module: nn.Module, before: tuple[int, ...]) -> Step:
    phi = inverse_of(module)
    if phi is not None:
        return Activation(name, phi)
    match module:
        case nn.Linear() if len(before) == 1:
            return Linear(name, module.weight.detach(), module.bias is not None)
        case nn.Conv2d() if _can_invert(name, module, before):
            return Conv.of(name, module, (before[0], before[1], before[2]))
        case nn.BatchNorm2d() | nn.BatchNorm1d() if module.running_mean is not None:
            return Affine.of(name, module, before)
        case nn.Flatten() | nn.Identity() | nn.Dropout() | nn.Dropout2d():
            return Reshape(name, before)
        case nn.AvgPool2d() | nn.AdaptiveAvgPool2d():
            return Pool.of(name, module, before)
        case _:
            kind = type(module).__name__
            raise ModelError(
                f"cannot walk back through {name} ({kind}) with inputs {before}; {REMEDY}"
            )


def _can_invert(name: str, layer: nn.Conv2d, before: tuple[int, ...]) -> bool:
    if layer.padding_mode != "zeros" or padding_of(layer) is None:
        raise ModelError(
            f"cannot walk back through {name} (Conv2d): expected zero padding, the same on both "
            f"sides, got {layer.padding_mode}, {layer.padding!r}; {REMEDY}"
        )
    if math.prod(before) > LARGEST:
        raise ModelError(
            f"cannot walk back through {name} (Conv2d): it has {math.prod(before)} inputs, and "
            f"softleak solves for {LARGEST} at most; {REMEDY}"
        )
    return len(before) == 3
