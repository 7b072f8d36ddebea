"""How many problems fit in memory at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from softleak.capture import forward_one
from softleak.matching.minimum import Optimiser
from softleak.matching.network import Network

# What double backpropagation holds of one sample, in units of its activations and parameters,
# as seen on LeNet, ResNet18, VGG and ViT.
ACTIVATIONS = 12
PARAMETERS = 6
MOST = 64  # problems at once: beyond, a batch is not faster


def at_once(
    network: Network, input_shape: tuple[int, ...], optimiser: Optimiser, memory: int
) -> int:
    """How many problems to run in one batch, at least one."""
    like = next(iter(network.parameters.values()))
    weights = sum(p.numel() for p in network.parameters.values())
    unknowns = math.prod(input_shape) + network.head.classes
    entries = (
        ACTIVATIONS * _activations(network, like.new_zeros(1, *input_shape))
        + PARAMETERS * weights
        + optimiser.vectors * unknowns
    )
    return max(1, min(MOST, memory // (entries * like.element_size())))


def _activations(network: Network, x: Tensor) -> int:
    """The entries of all layers' outputs for one input."""
    count = 0

    def add(_: nn.Module, __: object, output: object) -> None:
        nonlocal count
        count += output.numel() if isinstance(output, Tensor) else 0

    leaves = [m for m in network.model.modules() if not any(True for _ in m.children())]
    handles = [leaf.register_forward_hook(add) for leaf in leaves]
    try:
        with torch.no_grad():
            forward_one(network.model, x[0])
    finally:
        for handle in handles:
            handle.remove()
    return count
