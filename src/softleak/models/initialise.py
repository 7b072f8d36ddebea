"""Initialisation the paper uses for its untrained LeNet, AlexNet and ResNet-50."""

from __future__ import annotations

import torch
from torch import nn

from softleak.errors import ModelError


def uniform_(
    model: nn.Module, bound: float = 0.5, generator: torch.Generator | None = None
) -> nn.Module:
    """Fill every parameter, norm layers included, from U(-bound, bound), in place."""
    if not bound > 0:
        raise ModelError(f"bound must be positive, got {bound}.")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return model
