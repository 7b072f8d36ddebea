"""A model as a chain of layers, seen by tracing it; what branches is refused, and named."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from softleak.errors import ModelError
from softleak.head import Head
from softleak.inversion.conv import Conv
from softleak.inversion.linear import Linear
from softleak.inversion.pointwise import RELU, SIGMOID, TANH, Activation, Inverse, inverse_of
from softleak.inversion.pool import Pool
from softleak.inversion.simple import Affine, Reshape
from softleak.inversion.step import Step

REMEDY = "reconstruct by gradient matching instead"
RESHAPES = {torch.flatten, "flatten", "view", "reshape", torch.reshape}
FUNCTIONS: Mapping[Callable[..., Any] | str, Inverse] = {
    torch.relu: RELU, F.relu: RELU, "relu": RELU, "sigmoid": SIGMOID, torch.sigmoid: SIGMOID,
    F.sigmoid: SIGMOID, "tanh": TANH, torch.tanh: TANH, F.tanh: TANH,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Chain:
    """The layers before the head, from the last to the first, ready to be walked back."""

    head: Head
    steps: tuple[Step, ...]
    input_shape: tuple[int, ...]

    @classmethod
    def of(cls, model: nn.Module, head: Head, input_shape: tuple[int, ...]) -> Chain:
        """Trace a model in eval mode for inputs of one shape."""
        graph = _traced(model)
        like = next(model.parameters())
        ShapeProp(graph).propagate(like.new_zeros(1, *input_shape))
        nodes = list(graph.graph.nodes)
        steps: list[Step] = []
        node = _only_input(next(n for n in nodes if n.op == "output"))
        if node.op != "call_module" or str(node.target) != head.name:
            raise ModelError(f"the output does not come from the head {head.name!r}; {REMEDY}")
        node = _only_input(node)
        while node.op != "placeholder":
            before = _only_input(node)
            step = _step(model, node, tuple(before.meta["tensor_meta"].shape[1:]))
            _check_order(step, steps)
            steps.append(step)
            node = before
        return cls(head, tuple(_marked(steps)), input_shape)


def _marked(steps: list[Step]) -> list[Step]:
    """With the lowest fully connected layer spared what none below it needs."""
    heavy = [i for i, step in enumerate(steps) if isinstance(step, Linear | Conv)]
    last = steps[heavy[-1]] if heavy else None
    if isinstance(last, Linear):
        steps[heavy[-1]] = replace(last, lowest=True)
    return steps


def _traced(model: nn.Module) -> fx.GraphModule:
    try:
        return fx.symbolic_trace(model)
    except Exception as error:  # a forward that branches on its input fails in its own way
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"the model's forward cannot be traced ({reason}); {REMEDY}") from error


def _only_input(node: fx.Node) -> fx.Node:
    if len(node.all_input_nodes) != 1 or len(node.users) > 1:
        raise ModelError(
            f"the network is not a chain: it branches at {node.target!s} ({node.name}), which "
            f"cannot be walked back exactly; {REMEDY}"
        )
    return node.all_input_nodes[0]


def _check_order(step: Step, below: list[Step]) -> None:
    """Averages of an activation's outputs say nothing of each of them."""
    last = below[-1] if below else None
    if isinstance(step, Activation) and isinstance(last, Pool) and not last.injective:
        raise ModelError(
            f"cannot walk back through {last.name}: it averages the outputs of an activation "
            f"({step.name}), which are then not known one by one; {REMEDY}"
        )


def _step(model: nn.Module, node: fx.Node, before: tuple[int, ...]) -> Step:
    """The step behind a node of the graph."""
    name = str(node.target)
    if node.op == "call_module":
        return _module_step(name, model.get_submodule(name), before)
    target = node.target
    if target in FUNCTIONS:
        return Activation(node.name, FUNCTIONS[target])
    if target in RESHAPES or target is operator.getitem:
        return Reshape(node.name, before)
    raise ModelError(f"cannot walk back through {node.name} ({target!s}); {REMEDY}")


def _module_step(name: str, module: nn.Module, before: tuple[int, ...]) -> Step:
    phi = inverse_of(module)
    if phi is not None:
        return Activation(name, phi)
    match module:
        case nn.Linear():
            return Linear(name, module.weight.detach(), module.bias is not None)
        case nn.Conv2d() if module.padding_mode == "zeros" and not isinstance(module.padding, str):
            channels, height, width = before
            return Conv.of(name, module, (channels, height, width))
        case nn.BatchNorm2d() | nn.BatchNorm1d() if not module.training:
            return Affine.of(name, module)
        case nn.Flatten() | nn.Identity():
            return Reshape(name, before)
        case nn.AvgPool2d() | nn.AdaptiveAvgPool2d():
            return Pool.of(name, module, before)
        case nn.Dropout() | nn.Dropout2d() if not module.training:
            return Reshape(name, before)
        case _:
            kind = type(module).__name__
            raise ModelError(f"cannot walk back through {name} ({kind}) in this mode; {REMEDY}")
