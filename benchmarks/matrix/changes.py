"""What is done to a gradient before it is sent."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils import prune

from benchmarks.matrix.client import State

LEVELS = 127  # of eight bits, both signs alike


def clipped_by_layer(gradients: State) -> State:
    """Scale every gradient down to the median of their norms."""
    norms = {name: float(g.norm()) for name, g in gradients.items()}
    most = sorted(norms.values())[len(norms) // 2]
    return {n: g * min(1.0, most / max(norms[n], 1e-12)) for n, g in gradients.items()}


def pruned(gradient: Tensor, kept: float = 0.3) -> Tensor:
    """Keep the largest entries of a gradient, as torch prunes."""
    found: Tensor = prune.L1Unstructured(1 - kept).prune(gradient)  # type: ignore[no-untyped-call]
    return found


def largest(gradients: State, kept: float = 0.01) -> State:
    """Keep the largest entries of all gradients together."""
    sizes = torch.cat([g.abs().flatten() for g in gradients.values()])
    least = sizes.topk(max(int(kept * len(sizes)), 1)).values[-1]
    return {n: torch.where(g.abs() >= least, g, 0.0) for n, g in gradients.items()}


def int8(gradient: Tensor) -> Tensor:
    """Round to the nearest of 255 levels, as torch quantises."""
    step = float(gradient.abs().max()) / LEVELS
    if not step:
        return gradient
    return torch.quantize_per_tensor(gradient.float(), step, 0, torch.qint8).dequantize()


def stochastic(gradient: Tensor, source: torch.Generator) -> Tensor:
    """Round to one of the two neighbouring levels, so that the mean stays."""
    step = gradient.abs().max() / LEVELS
    if not float(step):
        return gradient
    return (gradient / step + torch.rand(gradient.shape, generator=source)).floor() * step


def noisy(gradient: Tensor, std: float, source: torch.Generator) -> Tensor:
    """Add independent Gaussian noise to every entry."""
    return gradient + std * torch.randn(gradient.shape, generator=source)
