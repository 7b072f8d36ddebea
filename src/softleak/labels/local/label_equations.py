"""This module solves the recursion of the head for its label, at scalars that are given.

At every scalar the label solves C equations. Newton's method computes a matrix of derivatives for
each of its steps. Near a scalar that is solved its matrix serves again, and steps cost no
derivative. ``labels_along.py`` chooses between the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class LabelEquations:
    """These settings solve the recursion for the label."""

    iterations: int = 12  # Newton steps; three to five are usual
    solved: float = 1e-7  # L1: the length of a Newton step after which the next would be rounding
    longest: float = 4.0  # L1: the largest step of Newton's method, labels being at most 2 apart
    outside: float = 1e3  # the entries of a label that stands for no solution
    stride: int = 8  # of so many scalars in a row at least, one is solved first
    apart: float = 1 / 8  # of |t|: the distance of scalars that are solved first
    fewest: int = 8  # scalars in a row below which every one is solved by itself
    narrow: float = 1 / 32  # of |t|: a bracket on which one matrix serves all scalars
    repeated: int = 8  # steps with a matrix taken over
    settled: float = 1e-12  # L1: the length of such a step that ends them
    entries: int = 1 << 16  # entries of derivatives held at once, so that they stay in the cache


LABEL_EQUATIONS = LabelEquations()


class Recursion(Protocol):
    """This is what is solved: N clients with one scalar each."""

    def take(self, rows: Tensor) -> Recursion:
        """Return some of the clients, repetitions allowed."""
        ...

    def target(self, t: Tensor) -> Tensor:
        """Return what ``mean`` should be (N, C)."""
        ...

    def mean(self, t: Tensor, y: Tensor) -> Tensor:
        """Return what the labels (N, C) lead to at the scalars (N,)."""
        ...

    def run(self, t: Tensor, y: Tensor) -> Sloped:
        """Return the same with its derivative."""
        ...


class Sloped(Protocol):
    """This is where a run ends (N, C), and the derivative of that by the label (N, C, C)."""

    @property
    def mean(self) -> Tensor: ...

    @property
    def slope(self) -> Tensor: ...


def no_labels(y: Tensor) -> Tensor:
    """Return labels (N, C) that stand for no solution: none is near any family."""
    found = torch.full_like(y, LABEL_EQUATIONS.outside)
    found[:, ::2] *= -1
    found[:, -1] = LABEL_EQUATIONS.outside
    return found


def chord(curve: Recursion, t: Tensor, y: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """Return labels (N, C) after steps with one inverse derivative (N, C, C), and which settled."""
    found, settled = y.clone(), torch.zeros(len(y), dtype=torch.bool, device=y.device)
    left, before = torch.arange(len(y), device=y.device), y.new_full((len(y),), torch.inf)
    target = curve.target(t)
    for _ in range(LABEL_EQUATIONS.repeated):
        move = (back @ (curve.mean(t, y) - target)[..., None])[..., 0]
        length = move.abs().sum(-1)
        y = y - move
        found[left] = y
        done = length <= LABEL_EQUATIONS.settled
        settled[left[done]] = True
        keep = (~done & (length < before / 2)).nonzero()[:, 0]
        if not len(keep):
            break
        if len(keep) < len(left):
            curve, target, back = curve.take(keep), target[keep], back[keep]
            t, y, left, length = t[keep], y[keep], left[keep], length[keep]
        before = length
    return found, settled


def newton(curve: Recursion, row: Tensor, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the labels (K, C) of clients ``row`` at scalars ``t``, and inverse derivatives."""
    size = LABEL_EQUATIONS.entries // y.shape[-1] ** 2 + 1
    everyone = torch.arange(len(t), device=t.device)
    parts = [_newton_of(curve.take(row[i]), t[i], y[i]) for i in torch.split(everyone, size)]
    labels, back = zip(*parts, strict=True)
    return torch.cat(labels), torch.cat(back)


def _newton_of(curve: Recursion, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the labels (N, C) at one scalar (N,) each, from labels that are near or not."""
    found = no_labels(y)
    inverse = y.new_zeros(*y.shape, y.shape[-1])
    left = torch.arange(len(y), device=t.device)
    for _ in range(LABEL_EQUATIONS.iterations):
        run = curve.run(t, y)
        back, singular = torch.linalg.inv_ex(run.slope)
        move = (back @ (run.mean - curve.target(t))[..., None])[..., 0]
        length = move.abs().sum(-1, keepdim=True)
        y = y - move * (LABEL_EQUATIONS.longest / length.clamp_min(LABEL_EQUATIONS.longest))
        done = length[:, 0] <= LABEL_EQUATIONS.solved
        found[left[done]], inverse[left[done]] = y[done], back[done]
        keep = (~done & length[:, 0].isfinite() & (singular == 0)).nonzero()[:, 0]
        if not len(keep):
            break
        if len(keep) < len(left):
            curve, t, y, left = curve.take(keep), t[keep], y[keep], left[keep]
    return found, inverse
