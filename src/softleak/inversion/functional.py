"""Layers that a forward calls as functions, as the modules that do the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

# Function and module take their settings by the same names and in the same order.
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


def as_module(node: fx.Node) -> nn.Module | None:
    """The module a function call stands for; None if there is none, or its settings are traced."""
    settings = {name: value for name, value in node.kwargs.items() if name != "input"}
    if node.target in DROPOUTS:
        return DROPOUTS[node.target]().train(bool(settings["training"]))
    if node.target not in MODULES or len(node.all_input_nodes) != 1:
        return None
    return MODULES[node.target](*node.args[1:], **settings)
