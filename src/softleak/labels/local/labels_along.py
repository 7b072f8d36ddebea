"""This module finds the labels of the head's recursion along rows of scalars.

Some scalars are solved by Newton's method. The others begin on the lines between these and take
over the nearest matrix. A search cuts the same brackets again and again, so the labels that were
found last are remembered. What does not settle so, Newton's method solves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.labels.local.label_equations import (
    LABEL_EQUATIONS,
    Recursion,
    chord,
    newton,
    no_labels,
)


def narrow(t: Tensor) -> bool:
    """Return whether the scalars (N, S) of every row lie close together."""
    size = t.abs()
    return bool((size.amax(1) <= (1 + LABEL_EQUATIONS.narrow) * size.amin(1)).all())


@dataclass(frozen=True, eq=False)
class Bracket:
    """These are the labels of scalars that lie close together.

    Attributes:
        t: the scalars (N, S), ordered in every row.
        y: their labels (N, S, C).
        back: the inverse derivative (N, C, C) in the middle; zeros where there is no label.
    """

    t: Tensor
    y: Tensor
    back: Tensor

    def holds(self, t: Tensor) -> bool:
        """Return whether the scalars (N, S) all lie within those of the bracket."""
        if len(self.t) != len(t):
            return False
        inside = (t.amin(1) >= self.t.amin(1)) & (t.amax(1) <= self.t.amax(1))
        return bool(inside.all())


@dataclass(eq=False)
class Solved:
    """This remembers the narrow bracket that was solved last.

    A search cuts brackets again and again. Each time its scalars lie between those before, whose
    labels are the best to begin with, and whose derivative still serves.
    """

    bracket: Bracket | None = None


def solve_along(curve: Recursion, t: Tensor, start: Tensor, last: Solved) -> Tensor:
    """Return the labels (N, S, C) at the scalars ``t`` (N, S), ordered in every row.

    Args:
        curve: the recursions of N clients.
        t: the scalars.
        start: labels (N, S, C) to begin with. A label that is not found is ``outside``.
        last: what was found before for these clients; it is brought up to date.
    """
    count, classes = t.shape[1], start.shape[-1]
    if not t.numel():
        return start
    if count < 2 * LABEL_EQUATIONS.fewest:
        row = torch.arange(len(t), device=t.device).repeat_interleave(count)
        return newton(curve, row, t.reshape(-1), start.reshape(-1, classes))[0].view(start.shape)
    if last.bracket is not None and last.bracket.holds(t):
        last.bracket = _solve_within(curve, t, start, last.bracket)
        return last.bracket.y
    knots = _knots(t)
    row = torch.arange(len(t), device=t.device).repeat_interleave(len(knots))
    at, first = t[:, knots], start[:, knots]
    known, back = newton(curve, row, at.reshape(-1), first.reshape(-1, classes))
    known, back = known.view(first.shape), back.view(*first.shape, classes)
    line, near, _ = _between(at, known, t)
    begin = torch.where(near[..., None], line, start)
    found = _solve_near(curve, t, begin, near, back, torch.zeros_like(near))
    if len(knots) == 1:
        last.bracket = Bracket(t, found, back[:, 0])
    return found


def _solve_within(curve: Recursion, t: Tensor, start: Tensor, bracket: Bracket) -> Bracket:
    """Return the labels at scalars (N, S) within a bracket that is solved.

    Between two scalars without a label none is looked for: all of their row has none then.
    """
    line, both, one = _between(bracket.t, bracket.y, t)
    usable = (bracket.back != 0).any(-1).any(-1)
    begin = torch.where(both[..., None], line, start)
    found = _solve_near(curve, t, begin, both & usable[:, None], bracket.back[:, None], ~one)
    return Bracket(t, found, bracket.back)


def _solve_near(
    curve: Recursion, t: Tensor, begin: Tensor, near: Tensor, back: Tensor, hopeless: Tensor
) -> Tensor:
    """Return the labels (N, S, C) of scalars (N, S), with matrices taken over where they serve.

    Args:
        curve: the recursions of N clients.
        t: the scalars.
        begin: labels to begin with.
        near: (N, S) where these are near enough for a matrix to serve.
        back: inverse derivatives (N, K, C, C) at K scalars that are spread over every row.
        hopeless: (N, S) where no label is looked for.
    """
    count, knots, classes = t.shape[1], back.shape[1], begin.shape[-1]
    row = torch.arange(len(t), device=t.device).repeat_interleave(count)
    at = torch.arange(count, device=t.device)
    nearest = (at * (knots - 1) / max(count - 1, 1)).round().long().repeat(len(t))
    flat, begin = t.reshape(-1), begin.reshape(-1, classes)
    found, settled = begin.clone(), hopeless.reshape(-1).clone()
    found[settled] = no_labels(begin[settled])
    every = near.reshape(-1).nonzero()[:, 0]
    for some in torch.split(every, LABEL_EQUATIONS.entries // classes**2 + 1):
        mine = back[row[some], nearest[some]]
        y, done = chord(curve.take(row[some]), flat[some], begin[some], mine)
        found[some], settled[some] = y, done
    rest = (~settled).nonzero()[:, 0]
    if len(rest):
        found[rest] = newton(curve, row[rest], flat[rest], begin[rest])[0]
    return found.view(*t.shape, classes)


def _knots(t: Tensor) -> Tensor:
    """Return which of the scalars (N, S) are solved first: the middle, or some and both ends."""
    count = t.shape[1]
    if narrow(t):
        return torch.tensor([count // 2], device=t.device)
    size = t.abs()
    far = float((size.amax(1) / size.amin(1)).max().log()) / LABEL_EQUATIONS.apart
    most = (count - 1) // LABEL_EQUATIONS.stride + 1
    gaps = min(math.ceil(far), most)
    return torch.linspace(0, count - 1, gaps + 1, device=t.device).round().long()


def _between(known_t: Tensor, known: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return labels on the lines between those that are known.

    Args:
        known_t: scalars (N, K), ordered in every row.
        known: their labels (N, K, C).
        t: scalars (N, S) among these.

    Returns:
        The labels (N, S, C), whether both ends of the line are solved (N, S), and whether one is.
    """
    inside = known.amax(-1) < LABEL_EQUATIONS.outside
    if known_t.shape[1] == 1:
        near = inside.expand(-1, t.shape[1])
        return known.expand(-1, t.shape[1], -1), near, near
    way = (known_t[:, -1:] - known_t[:, :1]).sign()  # rows may descend
    left = torch.searchsorted((known_t * way).contiguous(), (t * way).contiguous(), right=True) - 1
    left = left.clamp(0, known_t.shape[1] - 2)
    start, end = known_t.gather(1, left), known_t.gather(1, left + 1)
    part = ((t - start) / torch.where(end == start, 1.0, end - start))[..., None]
    wide = left[..., None].expand(-1, -1, known.shape[-1])
    line = torch.lerp(known.gather(1, wide), known.gather(1, wide + 1), part)
    one, other = inside.gather(1, left), inside.gather(1, left + 1)
    return line, one & other, one | other
