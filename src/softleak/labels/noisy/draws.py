"""Weighted draws of a posterior: labels, their scalars, and what they amount to entry by entry."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.labels.noisy.posterior import Points, Posterior


@dataclass(frozen=True)
class DrawSettings:
    """The roundings that draws are handled with.

    Attributes:
        light: a draw with less than this part of the heaviest weight is left out.
        rounded: what adding up weights may leave of a sum of one.
    """

    light: float = 1e-9
    rounded: float = 1e-9


DRAWN = DrawSettings()


@dataclass(frozen=True, eq=False)
class Draws:
    """R labels (R, C), their scalars τ, sizes |t| and weights, which sum to one.

    The last three have the shape (R,), or (R, M) if every label was drawn with M scalars. ``plain``
    (R,) tells which labels are on the faces of their simplices: nobody smoothed them.
    """

    labels: Tensor
    tau: Tensor
    size: Tensor
    weight: Tensor
    plain: Tensor

    @property
    def label_weight(self) -> Tensor:
        """Return the weight (R,) of each label, whatever its scalar."""
        return self.weight.flatten(1).sum(1) if self.weight.ndim > 1 else self.weight

    @classmethod
    def of(cls, posterior: Posterior, points: Points, tau: Tensor, width: Tensor) -> Draws:
        """Collect every label of a quadrature with nodes τ (S,) and widths (S,) that has weight."""
        log = points.log + width.log()[:, None, None]
        weight = (log - log.max()).exp()
        s, p, k = (weight > DRAWN.light).nonzero(as_tuple=True)
        simplices, kept = posterior.simplices, weight[s, p, k]
        own = p % len(simplices.corners)  # faces follow the simplices that they belong to
        mixed = (points.weights[s, p, k][:, None] @ simplices.directions.to(tau)[own])[:, 0]
        labels = (simplices.origin.to(tau)[own] + mixed).clamp_min(0.0)
        plain = p >= len(simplices.corners)
        return cls(labels, tau[s], points.size[s, p, k], kept / kept.sum(), plain)

    def of_class(self, index: int) -> Draws:
        """Return the draws in which this class leads, with weights that sum to one again."""
        return self._some(self.labels.argmax(-1) == index)

    def kinds(self, least: float) -> list[Draws]:
        """Return smoothed and unsmoothed labels apart, where they have this probability at least.

        Which of both a client uses is a habit and not a matter of chance. What is said with a
        probability has to hold for each that the numbers leave open.
        """
        parts = (self.plain, ~self.plain)
        return [self._some(part) for part in parts if float(self.label_weight[part].sum()) >= least]

    def _some(self, mine: Tensor) -> Draws:
        """Return some of the draws (R,), with weights that sum to one again."""
        weight = self.weight[mine]
        return Draws(
            self.labels[mine], self.tau[mine], self.size[mine], weight / weight.sum(),
            self.plain[mine],
        )  # fmt: skip

    def classes(self) -> Tensor:
        """Return the probability (C,) of each class to lead the label."""
        zero = self.labels.new_zeros(self.labels.shape[1])
        return zero.index_add(0, self.labels.argmax(-1), self.label_weight)

    def quantile(self, values: Tensor, level: float) -> Tensor:
        """Return the weighted quantile of ``values``: one for each label, or for each scalar."""
        weight = self.weight if values.shape == self.weight.shape else self.label_weight
        ordered, order = values.flatten().sort()
        reached = weight.flatten()[order].cumsum(0)
        return ordered[(reached < level).sum().clamp_max(len(ordered) - 1)]

    def interval(self, mass: float) -> Tensor:
        """Return an interval (2, C) that holds each entry with this probability.

        It holds the entries of each kind of label that the numbers leave open.
        """
        each = torch.stack([kind.shortest_interval(mass) for kind in self.kinds(1 - mass)])
        return torch.stack([each[:, 0].amin(0), each[:, 1].amax(0)])

    def shortest_interval(self, mass: float) -> Tensor:
        """Return the shortest interval (2, C) that holds each entry with this probability.

        The density of an entry may be highest at zero or at one, as that of a one-hot label is. The
        interval then reaches that end, because labels do lie on the edges of the simplex.
        """
        values, order = self.labels.T.contiguous().sort(-1)
        weight = self.label_weight[order]
        reached = weight.cumsum(-1)
        before = reached - weight
        last = torch.searchsorted(reached, before + mass * (1 - DRAWN.rounded))
        last = last.clamp_max(values.shape[-1] - 1)
        width = values.gather(-1, last) - values
        whole = before + mass <= 1 + DRAWN.rounded
        start = width.masked_fill(~whole, torch.inf).argmin(-1, keepdim=True)
        low, high = (values.gather(-1, at)[:, 0] for at in (start, last.gather(-1, start)))
        reach = (high - low).clamp_min(DRAWN.rounded)
        return torch.stack([
            torch.where(low <= reach, 0.0, low), torch.where(1 - high <= reach, 1.0, high)
        ])  # fmt: skip
