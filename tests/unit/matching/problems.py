"""Problems whose minimum is known, in the shape optimisers take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch


@dataclass
class Known:
    """Rows of unknowns, each with a loss of its own."""

    losses: list[Callable[[torch.Tensor], torch.Tensor]]
    evaluated: list[int] = field(default_factory=list)

    def select(self, rows):
        return Known([self.losses[i] for i in rows.tolist()], self.evaluated)

    def evaluator(self):
        def evaluate(unknowns):
            self.evaluated.append(len(unknowns))
            x = unknowns.detach().requires_grad_()
            loss = torch.stack([f(row) for f, row in zip(self.losses, x, strict=True)])
            (slope,) = torch.autograd.grad(loss.sum(), x)
            return loss.detach(), slope

        return evaluate


def bowl(scale=1.0, centre=0.0):
    return lambda x: scale * (x - centre).square().sum()


def valley(x):
    """Rosenbrock's, in two unknowns and more."""
    return (100 * (x[1:] - x[:-1].square()).square() + (1 - x[:-1]).square()).sum()


def kinked(x):
    return (x - 2).abs().sum()


def blown(x):
    """Falls, and is NaN beyond."""
    return torch.where(x.sum() < 1, -x.sum(), torch.nan)
