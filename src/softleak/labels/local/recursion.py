"""The head alone is trained on one sample: K steps are again a curve in one scalar.

The feature ``x`` stays as it is, so the update, less its weight decay, is exactly ``A xᵀ``, and the
logits obey a recursion in C numbers (docs/local-training.md):

    z_k = α_k z_0 − (‖x‖² + β) A_k,    δ_k = softmax(z_k) − y,    A_{k+1} = A_k + lr δ_k …,

with ``β = 1`` if the head's bias is trained as well. The last ``A`` is ``κ t u`` with ``u`` known,
and ``x = (σ/t) v``: for every scalar ``t`` the label solves C equations, by Newton's method.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.labels.curve import ENTRIES_AT_ONCE, Interval
from softleak.labels.local.recipe import SgdSteps
from softleak.labels.pseudo import PseudoLabels


@dataclass(frozen=True)
class RecursionSettings:
    """These settings solve the recursion for the label."""

    iterations: int = 12  # Newton steps; three to five are usual
    solved: float = 1e-7  # L1: the length of a Newton step after which the next would be rounding
    longest: float = 4.0  # L1: the largest step of Newton's method, labels being at most 2 apart
    outside: float = 1e3  # the entries of a label that stands for no solution
    stride: int = 8  # of so many scalars in a row, one is solved first, and the others start near
    entries: int = 1 << 16  # entries of derivatives held at once, so that they stay in the cache


RECURSION = RecursionSettings()


@dataclass(frozen=True, eq=False)
class Run:
    """This is one run of the recursion: where it ends, how that depends on y, and what p did."""

    mean: Tensor  # A/κ (…, C)
    slope: Tensor  # its derivative by the label (…, C, C)
    p_most: Tensor  # the largest of every step (…, C)
    p_curved: Tensor  # the largest p (1 − p) of every step (…, C)


@dataclass(frozen=True, eq=False)
class RecursionCurve:
    """This is ŷ(t) of N clients after several steps of the head.

    Attributes:
        pseudo: the curves of the mean gradients, read as one step.
        squared: (N,) σ², so that ``‖x‖² = σ²/t²``.
        recipe: the steps.
        bias_trained: whether the head's bias takes part.
    """

    pseudo: PseudoLabels
    squared: Tensor
    recipe: SgdSteps
    bias_trained: bool

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        start = self.pseudo.labels(t)[0]
        count, stride = t.shape[1], RECURSION.stride
        if count > 2 * stride:
            knots = torch.arange(0, count, stride, device=t.device)
            knots = knots if int(knots[-1]) == count - 1 else torch.cat([knots, knots[-1:] * 0 - 1])
            start = self._between(start, knots % count, self._labels(t[:, knots], start[:, knots]))
        return self._labels(t, start), t.abs()

    def _between(self, start: Tensor, knots: Tensor, solved: Tensor) -> Tensor:
        """Return labels (N, S, C) on the lines between those solved at some scalars (N, K, C)."""
        at = torch.arange(start.shape[1], device=start.device)
        left = (torch.searchsorted(knots, at, right=True) - 1).clamp_max(len(knots) - 2)
        part = (at - knots[left]) / (knots[left + 1] - knots[left])
        known = solved.amax(-1) < RECURSION.outside
        both = (known[:, left] & known[:, left + 1])[..., None]
        line = torch.lerp(solved[:, left], solved[:, left + 1], part.to(solved)[:, None])
        return torch.where(both, line, start)

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        parts = [self.take(r)._errors(t[r], y[r]) for r in self._chunks(t, ENTRIES_AT_ONCE)]
        return torch.cat(parts)

    def logits(self) -> Tensor:
        return self.pseudo.logits()

    def take(self, rows: Tensor) -> RecursionCurve:
        return replace(self, pseudo=self.pseudo.take(rows), squared=self.squared[rows])

    def interval(self) -> Interval:
        """Return the scalars of both signs to search: those at which the steps are stable.

        The loss curves by at most ``(‖x‖² + β)/2`` along the head's output. SGD is stable while
        the rate times that is below ``2 (1 + momentum)``; a feature so long that the client's own
        training would not be, means no label that anyone could hold for the client's.
        """
        if self.recipe.steps == 1:
            return self.pseudo.interval()
        where = self.pseudo.interval()
        longest = 4 * (1 + self.recipe.momentum) / self.recipe.lr
        shortest = (self.squared / longest).sqrt()[where.client]
        smallest = where.smallest.maximum(shortest).minimum(where.largest / 2)
        return replace(where, smallest=smallest)

    def unsolved(self, t: Tensor) -> Tensor:
        """Return whether no label solves the recursion at the scalars ``t`` (N, S)."""
        top: Tensor = self.labels(t)[0].amax(-1)
        return top >= RECURSION.outside

    def _chunks(self, t: Tensor, entries: int) -> tuple[Tensor, ...]:
        """Return rows of ``t`` (N, …) that fit in memory together, a matrix for each scalar."""
        each = t[:1].numel() * self.pseudo.u.shape[-1] ** 2
        everyone = torch.arange(len(t), device=t.device)
        return torch.split(everyone, max(entries // max(each, 1), 1))

    def _labels(self, t: Tensor, start: Tensor) -> Tensor:
        """Return the labels (N, S, C) at the scalars ``t`` (N, S) by Newton's method."""
        row = torch.arange(len(t), device=t.device).repeat_interleave(t.shape[1])
        flat, begin = t.reshape(-1), start.reshape(-1, start.shape[-1])
        parts = [
            self.take(row[some])._newton(flat[some], begin[some])
            for some in self._chunks(flat, RECURSION.entries)
        ]
        return torch.cat(parts).reshape(start.shape) if parts else start

    def _newton(self, t: Tensor, y: Tensor) -> Tensor:
        """Return the labels (N, C) at one scalar (N,) each, from labels that are near or not."""
        target = t[:, None] * self.pseudo.u
        found = torch.full_like(y, RECURSION.outside)
        found[:, ::2] *= -1
        found[:, -1] = RECURSION.outside
        left = torch.arange(len(y), device=t.device)
        for _ in range(RECURSION.iterations):
            run = self.take(left).run(t[left], y)
            move = _solve(run.slope, run.mean - target[left])
            length = move.abs().sum(-1, keepdim=True)
            y = y - move * (RECURSION.longest / length.clamp_min(RECURSION.longest))
            done = length[:, 0] <= RECURSION.solved
            found[left[done]] = y[done]
            keep = (~done & length[:, 0].isfinite()).nonzero()[:, 0]
            if not len(keep):
                break
            y, left = y[keep], left[keep]
        return found

    def _errors(self, t: Tensor, y: Tensor) -> Tensor:
        """Return what rounding of the update and of every step leaves in the label.

        It is the rounding of the mean gradient, carried back by the recursion's derivative.
        """
        row = torch.arange(len(t), device=t.device).repeat_interleave(t.shape[1])
        outside = y.amax(-1) >= RECURSION.outside
        safe = torch.where(outside[..., None], 1 / y.shape[-1], y)
        run = self.take(row).run(t.reshape(-1), safe.reshape(-1, y.shape[-1]))
        back = torch.linalg.inv_ex(run.slope).inverse.abs().nan_to_num(torch.inf)
        back = back.reshape(*y.shape, y.shape[-1])
        delta = (t[..., None] * self.pseudo.u[:, None]).abs()
        most, curved = run.p_most.reshape(y.shape), run.p_curved.reshape(y.shape)
        own = self.pseudo.rounding_of(t, delta, most, curved)
        carried: Tensor = (back @ own[..., None])[..., 0]
        return carried.masked_fill(outside[..., None], self.pseudo.relative)

    def run(self, t: Tensor, y: Tensor) -> Run:
        """Run the recursion of N clients at one scalar (N,) and one label (N, C) each."""
        pseudo, recipe = self.pseudo, self.recipe
        length = self.squared / t.square() + float(self.bias_trained)
        product = pseudo.a / t[:, None]
        moved, turned = torch.zeros_like(y), y.new_zeros(*y.shape, y.shape[-1])
        memory = lag = None
        eye = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)
        most = curved = torch.zeros_like(y)
        for kept in recipe.kept[:-1]:
            base = kept * (product + pseudo.b) if self.bias_trained else kept * product + pseudo.b
            p = torch.softmax(base - length[:, None] * moved, -1)
            # The derivative of p by the label: p ⊙ (dz − p·dz), with dz = −length dA.
            bent = turned * -length[:, None, None]
            slope = (bent - p[:, None] @ bent).mul_(p[..., None]).sub_(eye)
            moved, memory = recipe.step(moved, memory, p - y)
            turned, lag = recipe.step(turned, lag, slope)
            most, curved = most.maximum(p), curved.maximum(p * (1 - p))
        total = recipe.total
        return Run(moved / total, turned / total, most, curved)


def _solve(slope: Tensor, rest: Tensor) -> Tensor:
    """Return the step (K, C) of Newton's method; not a number where equations are singular."""
    step, info = torch.linalg.solve_ex(slope, rest[..., None])
    return torch.where((info == 0)[:, None], step[..., 0], torch.nan)
