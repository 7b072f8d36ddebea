"""This module initialises untrained networks in other ways than PyTorch's own."""

from __future__ import annotations

import torch
from torch import nn

from softleak.errors import ModelError


def uniform_(
    model: nn.Module, bound: float = 0.5, generator: torch.Generator | None = None
) -> nn.Module:
    """Fill every parameter, norm layers included, from U(-bound, bound), in place.

    This makes the paper's untrained LeNet, AlexNet and ResNet-50.

    Args:
        model: the network to fill.
        bound: the largest absolute value.
        generator: draws the values; PyTorch's global one if it is not given.
    """
    if not bound > 0:
        raise ModelError(f"bound must be positive, got {bound}.")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return model


def kaiming_(model: nn.Module, generator: torch.Generator | None = None) -> nn.Module:
    """Draw every convolution as torchvision's ResNets do: Kaiming normal by fan-out, in place.

    The paper's untrained ResNet-18 has these weights if torchvision made it. Table 2 here has
    PyTorch's own.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(
                module.weight, mode="fan_out", nonlinearity="relu", generator=generator
            )
    return model
