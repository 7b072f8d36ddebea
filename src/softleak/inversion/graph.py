"""This module traces the nodes that a tensor passes on its way through a model.

A model that branches is refused, and the message names the node.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from softleak.errors import ModelError
from softleak.forward import forward_one
from softleak.inversion.step import REMEDY

SHAPE = "softleak_shape"  # where a node that gives a tensor holds its shape
MODES = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


def path_back(model: nn.Module, input_shape: tuple[int, ...]) -> list[fx.Node]:
    """Return the nodes from the model's output to its input.

    Args:
        model: The model, in eval mode.
        input_shape: The input's shape without the batch.

    Raises:
        ModelError: If the model cannot be traced, is in train mode or branches.
    """
    for name, module in model.named_modules():
        check_mode(name, module)
    graph = _traced(model)
    like = next(model.parameters())
    with torch.no_grad():
        forward_one(model, torch.zeros(input_shape))  # it names a wrong shape
        _Shapes(graph).run(like.new_zeros(1, *input_shape))
    node = next(n for n in graph.graph.nodes if n.op == "output")
    path = []
    while node.op != "placeholder":
        node = _only_input(node)
        path.append(node)
    return path


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of a node's tensor, without the batch."""
    shape: tuple[int, ...] = node.meta[SHAPE][1:]
    return shape


def check_mode(name: str, module: nn.Module) -> None:
    """Refuse a layer in train mode, if it computes something else there than in eval mode."""
    if isinstance(module, MODES) and module.training:
        raise ModelError(
            f"cannot walk back through {name} ({type(module).__name__}) in train mode; if the "
            f"client computed its gradient in eval mode call model.eval(), else {REMEDY}"
        )


class _Shapes(fx.Interpreter):
    """This runs a graph and notes the shape of every tensor, of a tuple that of the first one.

    PyTorch's own class for it loads a library for symbolic mathematics, which takes two seconds.
    """

    def run_node(self, n: fx.Node) -> Any:  # noqa: ANN401 - whatever a model computes
        found = super().run_node(n)
        several = found if isinstance(found, tuple | list) else (found,)
        tensors = [one for one in several if isinstance(one, Tensor)]
        if tensors:
            n.meta[SHAPE] = tuple(tensors[0].shape)
        return found


class _Tracer(fx.Tracer):
    """This tracer takes a layer as PyTorch's own if its forward is, whatever its class is."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = type(m).forward.__module__.startswith("torch.nn")
        return own and not isinstance(m, nn.Sequential)


def _traced(model: nn.Module) -> fx.GraphModule:
    """Return the model's graph, or say why it has none."""
    try:
        return fx.GraphModule(model, _Tracer().trace(model))
    except Exception as error:  # a forward that branches on its input fails in its own way
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"the model's forward cannot be traced ({reason}); {REMEDY}") from error


def _only_input(node: fx.Node) -> fx.Node:
    """Return the node whose tensor a node works on.

    Sizes and the model's own tensors do not count.
    """
    inputs, users = (
        [n for n in some if n.op == "output" or (n.op != "get_attr" and SHAPE in n.meta)]
        for some in (node.all_input_nodes, node.users)
    )
    if len(inputs) != 1 or len(users) > 1:
        raise ModelError(
            f"the network is not a plain sequence of layers: it branches at {called(node)} "
            f"({node.name}), so that it cannot be inverted layer by layer; {REMEDY}"
        )
    return inputs[0]


def called(node: fx.Node) -> str:
    """Return the name of what a node calls."""
    return str(getattr(node.target, "__name__", node.target))
