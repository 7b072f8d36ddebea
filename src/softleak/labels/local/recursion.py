"""The head alone is trained on one sample: K steps are again a curve in one scalar.

The feature ``x`` stays as it is, so the update, less its weight decay, is exactly ``A xᵀ``, and the
logits obey a recursion in C numbers (docs/local-training.md):

    z_k = α_k z_0 − (‖x‖² + β) A_k,    δ_k = softmax(z_k) − y,    A_{k+1} = A_k + lr δ_k …,

with ``β = 1`` if the head's bias is trained as well. The last ``A`` is ``κ t u`` with ``u`` known,
and ``x = (σ/t) v``: for every scalar ``t`` the label solves C equations, by Newton's method.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from softleak.labels.curve import ENTRIES_AT_ONCE, Interval
from softleak.labels.local.label_equations import LABEL_EQUATIONS
from softleak.labels.local.labels_along import Solved, narrow, solve_along
from softleak.labels.local.recipe import SgdSteps
from softleak.labels.pseudo import PseudoLabels


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
        last: the labels that were found last, which the next search begins with.
    """

    pseudo: PseudoLabels
    squared: Tensor
    recipe: SgdSteps
    bias_trained: bool
    last: Solved = field(default_factory=Solved, init=False, repr=False)

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return solve_along(self, t, self.pseudo.labels(t)[0], self.last), t.abs()

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        """Return what rounding leaves in the labels (N, S, C) at the scalars (N, S).

        On a narrow bracket the logarithms of these errors are straight between three scalars.
        """
        points = t.shape[1]
        if points < 2 * LABEL_EQUATIONS.fewest or not narrow(t):
            return self._errors(t, y)
        three = torch.tensor([0, points // 2, points - 1], device=t.device)
        known = self._errors(t[:, three], y[:, three]).clamp_min(self.pseudo.tiny).log()
        at = torch.arange(points, device=t.device)
        left = (at >= three[1]).long()
        begin, end = t[:, three[left]], t[:, three[left + 1]]
        part = ((t - begin) / (end - begin)).nan_to_num(0.0, 0.0, 0.0).clamp(0.0, 1.0)
        found = torch.lerp(known[:, left], known[:, left + 1], part[..., None]).exp()
        outside = (y.amax(-1) >= LABEL_EQUATIONS.outside).any(-1).nonzero()[:, 0]
        if len(outside):
            found[outside] = self.take(outside)._errors(t[outside], y[outside])
        return found

    @property
    def points_at_once(self) -> int:
        # Labels are found along all of a bracket at once, so it is not cut into small pieces.
        return max(ENTRIES_AT_ONCE // self.pseudo.u.shape[-1], 1)

    def logits(self) -> Tensor:
        return self.pseudo.logits()

    def take(self, rows: Tensor) -> RecursionCurve:
        return replace(self, pseudo=self.pseudo.take_each(rows), squared=self.squared[rows])

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

    def target(self, t: Tensor) -> Tensor:
        """Return the mean of ``p − y`` (N, C) that one scalar (N,) each means."""
        return t[:, None] * self.pseudo.u

    def mean(self, t: Tensor, y: Tensor) -> Tensor:
        """Return the mean of ``p − y`` (N, C) at one scalar (N,) and one label (N, C) each."""
        return self._sum(self._predictions(t, y)).T - y

    def run(self, t: Tensor, y: Tensor) -> Run:
        """Return ``mean`` with its derivative by the label, and what p did on the way."""
        steps = self._predictions(t, y)
        length = self.squared / t.square() + float(self.bias_trained)
        # The derivative of A by the label, (C, C, N): over long last dimensions it is fast.
        turned, lag = y.new_zeros(y.shape[-1], *y.T.shape), None
        for p in steps:
            # The derivative of p by the label: p ⊙ (dz − p·dz), with dz = −length dA.
            slope = turned * (-length * p)[:, None]
            slope.addcmul_(p[:, None], slope.sum(0), value=-1)
            slope.diagonal().sub_(1)
            lag = self.recipe.step_in_place(turned, lag, slope)
        every = torch.stack(steps)
        most, curved = every.amax(0).T, (every * (1 - every)).amax(0).T
        ended = turned.permute(2, 0, 1) / self.recipe.total
        return Run(self._sum(steps).T - y, ended.contiguous(), most, curved)

    def _predictions(self, t: Tensor, y: Tensor) -> list[Tensor]:
        """Return softmax(z_k) (C, N) before every step, at one scalar (N,) and label (N, C) each.

        Classes come first: a softmax over the first dimension is several times as fast.
        """
        length = self.squared / t.square() + float(self.bias_trained)
        product, bias = (self.pseudo.a.T / t).contiguous(), self.pseudo.b[:, None]
        y = y.T.contiguous()
        moved, memory = torch.zeros_like(y), None
        found: list[Tensor] = []
        for kept in self.recipe.kept[:-1]:
            base = kept * (product + bias) if self.bias_trained else kept * product + bias
            found.append(torch.softmax(base.addcmul_(length, moved, value=-1), 0))
            memory = self.recipe.step_in_place(moved, memory, found[-1] - y)
        return found

    def _sum(self, steps: list[Tensor]) -> Tensor:
        """Return the mean of what every step has, with the weights that the update gives them."""
        total = self.recipe.total
        weighed = zip(steps, self.recipe.weights, strict=True)
        return torch.stack([step * (weight / total) for step, weight in weighed]).sum(0)

    def _errors(self, t: Tensor, y: Tensor) -> Tensor:
        """Return what rounding of the update and of every step leaves in the label.

        It is the rounding of the mean gradient, carried back by the recursion's derivative.
        """
        each = max(t[:1].numel() * y.shape[-1] ** 2, 1)
        everyone = torch.arange(len(t), device=t.device)
        rows = torch.split(everyone, max(ENTRIES_AT_ONCE // each, 1))
        return torch.cat([self.take(some)._carried(t[some], y[some]) for some in rows])

    def _carried(self, t: Tensor, y: Tensor) -> Tensor:
        row = torch.arange(len(t), device=t.device).repeat_interleave(t.shape[1])
        outside = y.amax(-1) >= LABEL_EQUATIONS.outside
        inside = torch.where(outside[..., None], 1 / y.shape[-1], y)
        run = self.take(row).run(t.reshape(-1), inside.reshape(-1, y.shape[-1]))
        back = torch.linalg.inv_ex(run.slope).inverse.abs().nan_to_num(torch.inf)
        back = back.reshape(*y.shape, y.shape[-1])
        delta = (t[..., None] * self.pseudo.u[:, None]).abs()
        most, curved = run.p_most.reshape(y.shape), run.p_curved.reshape(y.shape)
        own = self.pseudo.rounding_of(t, delta, most, curved)
        carried: Tensor = (back @ own[..., None])[..., 0]
        return carried.masked_fill(outside[..., None], self.pseudo.relative)
