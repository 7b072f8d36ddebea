"""The paper's two reconstructions by gradient matching, one image at a time, with its settings.

L2 with L-BFGS (300 steps of up to 20 evaluations) and cosine with Adam (4800 steps); the learning
rate falls to a tenth after 3/8, 5/8 and 7/8 of the steps; the iterate of the lowest loss is kept.
To be timed and pictured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak import GradientShare

Distance = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]
FALLS = (3 / 8, 5 / 8, 7 / 8)


def squared(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
    return torch.stack([(a - b).square().sum() for a, b in zip(ours, theirs, strict=True)]).sum()


def cosine(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
    products = [(a * b).sum() for a, b in zip(ours, theirs, strict=True)]
    sizes = [torch.stack([g.square().sum() for g in each]).sum() for each in (ours, theirs)]
    return 1 - torch.stack(products).sum() / (sizes[0] * sizes[1]).sqrt()


@dataclass(frozen=True)
class Setting:
    """One of the two, with the weight of total variation."""

    name: str
    distance: Distance
    optimiser: Callable[[list[Tensor]], torch.optim.Optimizer]
    steps: int
    smooth: float


def l2(smooth: float, steps: int = 300) -> Setting:
    """L-BFGS, learning rate 1."""
    return Setting("L2", squared, lambda x: torch.optim.LBFGS(x, lr=1.0), steps, smooth)


def by_cosine(smooth: float, steps: int = 4800) -> Setting:
    """Adam, learning rate 0.1."""
    return Setting("cosine", cosine, lambda x: torch.optim.Adam(x, lr=0.1), steps, smooth)


def match(
    model: nn.Module, share: GradientShare, label: Tensor, setting: Setting, seed: int = 0
) -> Tensor:
    """The input (C, H, W) whose gradient comes nearest to the share's, the label being given."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    theirs = [share[name] for name in names]
    if share.input_shape is None:
        raise ValueError("the share does not say its input's shape")
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, *share.input_shape, generator=generator).requires_grad_()
    y = label.to(x.dtype)
    optimiser = setting.optimiser([x])
    falls = [round(part * setting.steps) for part in FALLS]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, falls, gamma=0.1)
    best, lowest = x.detach().clone(), math.inf

    def closure() -> Tensor:
        nonlocal best, lowest
        loss = -(torch.log_softmax(model(x), -1) * y).sum()
        ours = torch.autograd.grad(loss, parameters, create_graph=True)
        off = setting.distance(ours, theirs) + setting.smooth * _variation(x)
        (x.grad,) = torch.autograd.grad(off, x)
        value = float(off.detach())
        if value < lowest:
            best, lowest = x.detach().clone(), value
        return off

    for _ in range(setting.steps):
        optimiser.step(closure)  # type: ignore[arg-type]
        schedule.step()
    return best[0]


def _variation(x: Tensor) -> Tensor:
    """The mean absolute difference along each axis."""
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()
