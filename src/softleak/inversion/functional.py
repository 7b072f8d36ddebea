"""This module finds the layers that do the same as the functions and arithmetic of a forward."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from softleak.inversion.graph import shape_of
from softleak.inversion.lossless import Affine

# Functions and modules take their settings by the same names and in the same order.
MODULES: Mapping[Callable[..., Any] | str, Callable[..., nn.Module]] = {
    torch.relu: nn.ReLU, F.relu: nn.ReLU, "relu": nn.ReLU,
    torch.sigmoid: nn.Sigmoid, F.sigmoid: nn.Sigmoid, "sigmoid": nn.Sigmoid,
    torch.tanh: nn.Tanh, F.tanh: nn.Tanh, "tanh": nn.Tanh,
    torch.selu: nn.SELU, F.selu: nn.SELU, torch.celu: nn.CELU, F.celu: nn.CELU, F.elu: nn.ELU,
    F.leaky_relu: nn.LeakyReLU, F.softplus: nn.Softplus, F.softsign: nn.Softsign,
    F.logsigmoid: nn.LogSigmoid,
    F.avg_pool2d: nn.AvgPool2d, F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}  # fmt: skip
DROPOUTS: Mapping[Callable[..., Any] | str, type[nn.Module]] = {
    F.dropout: nn.Dropout, F.dropout2d: nn.Dropout2d,
}  # fmt: skip
# Minus one stands for the inverse operation: a difference or a quotient.
SUMS: Mapping[Callable[..., Any] | str, int] = {
    operator.add: 1, torch.add: 1, operator.sub: -1, torch.sub: -1,
}  # fmt: skip
PRODUCTS: Mapping[Callable[..., Any] | str, int] = {
    operator.mul: 1, torch.mul: 1, operator.truediv: -1, torch.div: -1,
}  # fmt: skip


def as_module(node: fx.Node) -> nn.Module | None:
    """Return the module that a function call stands for.

    Args:
        node: A call of a function or method.

    Returns:
        The module, or None if there is none or its settings are themselves computed tensors.
    """
    settings = {name: value for name, value in node.kwargs.items() if name != "input"}
    if node.target in DROPOUTS:
        return DROPOUTS[node.target]().train(bool(settings["training"]))
    if node.target not in MODULES or len(node.all_input_nodes) != 1:
        return None
    return MODULES[node.target](*node.args[1:], **settings)


def as_affine(model: nn.Module, node: fx.Node, before: tuple[int, ...]) -> Affine | None:
    """Return a sum or product with a constant as a step, such as a model that normalises inputs.

    Args:
        model: The model, whose own tensors are constants.
        node: The node of the sum or product.
        before: The shape of the node's input, without the batch.

    Returns:
        The step, or None if the node is no such operation or changes the shape.
    """
    known = node.target in SUMS or node.target in PRODUCTS
    if not known or len(node.args) != 2 or node.kwargs or shape_of(node) != before:
        return None
    first = _constant(model, node.args[0], before)
    other = _constant(model, node.args[1], before) if first is None else first
    if other is None:
        return None
    one = torch.ones_like(other)
    if node.target in SUMS:
        sign = SUMS[node.target]
        parts = (one, sign * other) if first is None else (sign * one, other)
        return Affine(node.name, *parts)
    power = PRODUCTS[node.target]
    return None if first is not None and power < 0 else Affine(node.name, other**power, 0 * one)


def _constant(model: nn.Module, given: object, before: tuple[int, ...]) -> Tensor | None:
    """Return an operand that is a number or a tensor of the model, broadcast to one input.

    None stands for an operand that the walk has to recover.
    """
    if isinstance(given, fx.Node):
        if given.op != "get_attr":
            return None
        given = operator.attrgetter(str(given.target))(model)
    value = torch.as_tensor(given).detach().double()
    return torch.broadcast_to(value, (1, *before))[0]
