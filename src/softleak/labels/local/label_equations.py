"""This module solves the recursion of the head for its label, at many scalars in a row.

At every scalar the label solves C equations. Some scalars are solved by Newton's method, with a
matrix of derivatives for each step. The others begin near these and take over the nearest matrix,
so that their steps cost no derivative. What does not settle so, Newton's method solves.
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
    stride: int = 8  # of so many scalars in a row, one is solved first, and the others start near
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


def narrow(t: Tensor) -> bool:
    """Return whether the scalars (N, S) of every row lie close together."""
    size = t.abs()
    return bool((size.amax(1) <= (1 + LABEL_EQUATIONS.narrow) * size.amin(1)).all())


def solve_along(curve: Recursion, t: Tensor, start: Tensor) -> Tensor:
    """Return the labels (N, S, C) at the scalars ``t`` (N, S), ordered in every row.

    Args:
        curve: the recursions of N clients.
        t: the scalars.
        start: labels (N, S, C) to begin with. A label that is not found is ``outside``.
    """
    count, classes = t.shape[1], start.shape[-1]
    row = torch.arange(len(t), device=t.device).repeat_interleave(count)
    flat, begin = t.reshape(-1), start.reshape(-1, classes)
    if not len(flat):
        return start
    if count < 2 * LABEL_EQUATIONS.fewest:
        return _newton(curve, row, flat, begin)[0].reshape(start.shape)
    knots = _knots(count, narrow(t), t.device)
    own, (n, k) = row.view(t.shape)[:, knots].reshape(-1), (len(t), len(knots))
    known, back = _newton(curve, own, t[:, knots].reshape(-1), start[:, knots].reshape(-1, classes))
    line, solved = _between(known.view(n, k, classes), knots, count)
    begin = torch.where(solved[..., None], line, start).reshape(-1, classes)
    at = torch.arange(count, device=t.device)
    nearest = (at[:, None] - knots).abs().argmin(1)
    place = (torch.arange(n, device=t.device)[:, None] * k + nearest).reshape(-1)
    hopeful = solved.reshape(-1).nonzero()[:, 0]
    found, settled = begin.clone(), torch.zeros(len(flat), dtype=torch.bool, device=t.device)
    for some in torch.split(hopeful, LABEL_EQUATIONS.entries // classes**2 + 1):
        y, done = _chord(curve.take(row[some]), flat[some], begin[some], back[place[some]])
        found[some], settled[some] = y, done
    rest = (~settled).nonzero()[:, 0]
    if len(rest):
        found[rest] = _newton(curve, row[rest], flat[rest], begin[rest])[0]
    return found.reshape(start.shape)


def _knots(count: int, one: bool, device: torch.device) -> Tensor:
    """Return which of so many scalars are solved first: the middle, or some and the last."""
    if one:
        return torch.tensor([count // 2], device=device)
    knots = torch.arange(0, count, LABEL_EQUATIONS.stride, device=device)
    last = knots.new_tensor([count - 1])
    return knots if int(knots[-1]) == count - 1 else torch.cat([knots, last])


def _between(known: Tensor, knots: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return labels (N, S, C) on the lines between those solved (N, K, C), and where they are."""
    inside = known.amax(-1) < LABEL_EQUATIONS.outside
    if len(knots) == 1:
        return known.expand(-1, count, -1), inside.expand(-1, count)
    at = torch.arange(count, device=known.device)
    left = (torch.searchsorted(knots, at, right=True) - 1).clamp_max(len(knots) - 2)
    part = ((at - knots[left]) / (knots[left + 1] - knots[left])).to(known)
    line = torch.lerp(known[:, left], known[:, left + 1], part[:, None])
    return line, inside[:, left] & inside[:, left + 1]


def _chord(curve: Recursion, t: Tensor, y: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
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


def _newton(curve: Recursion, row: Tensor, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the labels (K, C) of clients ``row`` at scalars ``t``, and inverse derivatives."""
    size = LABEL_EQUATIONS.entries // y.shape[-1] ** 2 + 1
    everyone = torch.arange(len(t), device=t.device)
    parts = [_newton_of(curve.take(row[i]), t[i], y[i]) for i in torch.split(everyone, size)]
    labels, back = zip(*parts, strict=True)
    return torch.cat(labels), torch.cat(back)


def _newton_of(curve: Recursion, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the labels (N, C) at one scalar (N,) each, from labels that are near or not."""
    found = torch.full_like(y, LABEL_EQUATIONS.outside)
    found[:, ::2] *= -1
    found[:, -1] = LABEL_EQUATIONS.outside
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
