"""The paper's two reconstructions by gradient matching, one image at a time, with its settings.

They are L2 with L-BFGS (300 steps of up to 20 evaluations) and cosine with Adam (4800 steps). The
learning rate falls to a tenth after 3/8, 5/8 and 7/8 of the steps. The best iterate is kept.
They serve as a comparison in times and pictures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak import GradientShare

Distance = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]
RATE_FALLS = (3 / 8, 5 / 8, 7 / 8)


def squared(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
    """Return the squared L2 distance of two gradients."""
    return torch.stack([(a - b).square().sum() for a, b in zip(ours, theirs, strict=True)]).sum()


def cosine(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
    """Return one minus the cosine of the angle between two gradients."""
    products = [(a * b).sum() for a, b in zip(ours, theirs, strict=True)]
    sizes = [torch.stack([g.square().sum() for g in each]).sum() for each in (ours, theirs)]
    return 1 - torch.stack(products).sum() / (sizes[0] * sizes[1]).sqrt()


@dataclass(frozen=True)
class Setting:
    """One of the two reconstructions.

    Attributes:
        name: its name in tables.
        distance: the distance between gradients that is minimised.
        optimiser: the function that makes the optimiser of the input.
        steps: the number of steps.
        smooth: the weight of total variation.
    """

    name: str
    distance: Distance
    optimiser: Callable[[list[Tensor]], torch.optim.Optimizer]
    steps: int
    smooth: float


def l2(smooth: float, steps: int = 300) -> Setting:
    """Return L2 with L-BFGS and learning rate 1."""
    return Setting("L2", squared, lambda x: torch.optim.LBFGS(x, lr=1.0), steps, smooth)


def by_cosine(smooth: float, steps: int = 4800) -> Setting:
    """Return cosine with Adam and learning rate 0.1."""
    return Setting("cosine", cosine, lambda x: torch.optim.Adam(x, lr=0.1), steps, smooth)


def match(
    model: nn.Module, share: GradientShare, label: Tensor, setting: Setting, seed: int = 0
) -> Tensor:
    """Return the input (C, H, W) whose gradient comes nearest to the share's, for a given label."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    theirs = [share[name] for name in names]
    if not isinstance(share.input_shape, tuple):
        raise ValueError("the share does not say its input's shape")
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, *share.input_shape, generator=generator).requires_grad_()
    y = label.to(x.dtype)
    optimiser = setting.optimiser([x])
    falls = [round(part * setting.steps) for part in RATE_FALLS]
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
    """Return the sum of the mean absolute differences along both axes."""
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()
