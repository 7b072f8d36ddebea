"""This module counts the outputs of a network's layers, on which the memory of an attack rests."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from softleak.forward import forward_one
from softleak.matching.differentiable_model import DifferentiableModel


def count_activations(model: DifferentiableModel, x: Tensor) -> int:
    """Return the number of entries of all layers' outputs for one input (1, …)."""
    count = 0

    def add(_: nn.Module, __: object, output: object) -> None:
        nonlocal count
        count += output.numel() if isinstance(output, Tensor) else 0

    def restart(_: nn.Module, __: object) -> None:
        nonlocal count
        count = 0  # an input of one channel may first be tried without its batch dimension

    leaves = [m for m in model.model.modules() if not any(True for _ in m.children())]
    handles = [leaf.register_forward_hook(add) for leaf in leaves]
    handles.append(model.model.register_forward_pre_hook(restart))
    try:
        with torch.no_grad():
            forward_one(model.model, x[0])
    finally:
        for handle in handles:
            handle.remove()
    return count
