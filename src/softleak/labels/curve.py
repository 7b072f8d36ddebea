"""Labels of many clients as a function of one scalar each: what a search runs along (Eq. 4).

    δ = t u        x = (σ/t) v        ŷ(t) = softmax((σ/t) W v + b) − t u

A share may also be multiplied by an unknown ``κ > 0`` (clipping, unknown learning rate, averaged
loss): ``G = κ δ xᵀ``. With ``τ = κ t`` the feature ``(σ/τ) v`` and the probabilities do not depend
on κ, and the label lies on the segment ``y(s) = p − s u`` for some ``s = |t| > 0``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from softleak.core.factors import Factors
from softleak.core.families import Family
from softleak.core.head import Head

ENTRIES_AT_ONCE = 1 << 22  # entries of labels that are evaluated at once
CACHED_ENTRIES = 1 << 18  # entries of labels whose memory is used again from step to step
TELLING_ENTRIES = 64  # first entries of a label, which mostly tell if it is far from a family

# What spaces the grid of scalars, in points per factor e of |t|.
CURVE_GRID_DENSITY = 32  # points, if the classes are neither few nor many
CURVE_GRID_FINE = 512  # points with few classes
CURVE_GRID_FEW_CLASSES = 8  # classes below which solutions hide in slivers of t
CURVE_GRID_COARSE = 16  # points with many classes
CURVE_GRID_MANY_CLASSES = 200  # classes from which on a coarse grid suffices
CURVE_GRID_FEWEST = 33  # points of the smallest grid
CURVE_GRID_SIZE_FACTOR = 1.15  # between the sizes of grids, so that rows can share one


class Curve(Protocol):
    """Labels of N clients as a function of one scalar each: what a search runs along."""

    @property
    def points_at_once(self) -> int:
        """Return how many scalars are best evaluated together: their labels fit in the cache."""

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return labels ``y`` (N, S, C) at the scalars ``t`` (N, S), and ``‖p − y‖`` (N, S)."""

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        """Return how far rounding may have moved each entry of ``labels(t)``, or of its first."""

    def logits(self) -> Tensor | None:
        """Return what the softmax is taken of (N, C) up to a factor, None if it does not move."""

    def take(self, rows: Tensor) -> Curve:
        """Return the curves of some clients, in that order, repetitions allowed."""

    def interval(self) -> Interval:
        """Return the scalars that are searched."""


@dataclass(frozen=True, eq=False)
class Interval:
    """Where to search, one row a curve: |t| from ``smallest`` to ``largest``, with a sign. (R,)."""

    client: Tensor
    sign: Tensor
    smallest: Tensor
    largest: Tensor
    density: int = CURVE_GRID_DENSITY

    @classmethod
    def positive(
        cls, smallest: Tensor, largest: Tensor, density: int = CURVE_GRID_DENSITY
    ) -> Interval:
        """Return the positive scalars of every client between two bounds (N,)."""
        everyone = torch.arange(len(largest), device=largest.device)
        return cls(everyone, torch.ones_like(largest), smallest, largest, density)

    def grids(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return rows (R',) that need equally many points, and these (R', T), ascending in |t|.

        They are evenly spaced in its logarithm. How many a row gets depends on its client alone, so
        that no answer depends on what else is in its batch.
        """
        start, stop = self.smallest.log(), self.largest.log()
        wanted = ((stop - start) * self.density / CURVE_GRID_FEWEST).clamp_min(1.0)
        level = (wanted.log() / math.log(CURVE_GRID_SIZE_FACTOR)).ceil()
        # Both signs of a client share one grid, and with it every step of the search.
        most = torch.zeros(int(self.client.max()) + 1).to(level)
        level = most.scatter_reduce(0, self.client, level, "amax")[self.client]
        for one in sorted(set(level.tolist())):
            rows = (level == one).nonzero()[:, 0]
            points = math.ceil(CURVE_GRID_FEWEST * CURVE_GRID_SIZE_FACTOR**one)
            steps = torch.linspace(0, 1, points, dtype=start.dtype, device=start.device)
            sizes = torch.lerp(start[rows, None], stop[rows, None], steps).exp()
            yield rows, sizes.mul(self.sign[rows, None])


def density_for(classes: int) -> int:
    """Return the grid points per factor e: few classes leave many solutions close together."""
    if classes >= CURVE_GRID_MANY_CLASSES:
        return CURVE_GRID_COARSE  # many equations make wide minima
    return CURVE_GRID_FINE if classes < CURVE_GRID_FEW_CLASSES else CURVE_GRID_DENSITY


def spread(curve: Curve, family: Family, t: Tensor) -> Tensor:
    """Return the scale-free loss (N, S) of Eq. 5: the distance of ``ŷ/‖p − ŷ‖`` from the family."""
    (found,) = in_pieces(lambda some, at: (spread_of(family, *some.labels(at)),), curve, t)
    return found


def in_pieces(
    values: Callable[[Curve, Tensor], tuple[Tensor, ...]], curve: Curve, t: Tensor
) -> tuple[Tensor, ...]:
    """Return ``values`` (N, S) at scalars ``t`` (N, S), in pieces that stay in the cache."""
    points = curve.points_at_once
    if t.numel() <= points:
        return values(curve, t)
    rows = max(points // t.shape[1], 1)
    columns = -(-t.shape[1] // -(-t.shape[1] // points))  # pieces of the same length
    found = []
    for part in torch.split(torch.arange(len(t), device=t.device), rows):
        mine = curve.take(part)
        row = [values(mine, some) for some in torch.split(t[part], columns, dim=1)]
        found.append([torch.cat(pieces, 1) for pieces in zip(*row, strict=True)])
    return tuple(torch.cat(pieces) for pieces in zip(*found, strict=True))


def spread_of(family: Family, y: Tensor, size: Tensor) -> Tensor:
    """Return the spread (N, S) of labels (N, S, C) whose ``‖p − y‖`` is ``size`` (N, S)."""
    if hasattr(family, "distance"):  # isinstance with a protocol takes ten times as long
        length: Tensor = family.distance(y)
    else:
        length = torch.linalg.vector_norm(y - family.project(y), dim=-1)
    return length / size


def distance(family: Family, y: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distance of labels (…, C) from a family by entry, and what of it is rounding.

    A family that does not weigh entries is projected onto twice: its nearest member moves with the
    entries it is made of.
    """
    if hasattr(family, "nearest"):
        nearest, moved = family.nearest(y, error)
    else:
        nearest = family.project(y)
        moved = (family.project(y + error) - nearest).abs()
    return y - nearest, error + moved


def on_simplex(y: Tensor) -> Tensor:
    """Return a label (C,) without negative entries, which sums to one."""
    kept = y.clamp_min(0)
    return kept / kept.sum()


def root_mean_square(rest: Tensor, error: Tensor) -> Tensor:
    """Return a distance (…, C) in units of its error, over the entries that a family determines."""
    count = (rest != 0).sum(-1).clamp_min(1)
    return ((rest / error).square().sum(-1) / count).sqrt()


def unfit_of(family: Family, y: Tensor, error: Tensor) -> Tensor:
    """Return the distance (…) of labels (…, C) from a family in units of their ``error``."""
    if hasattr(family, "misfit"):
        found: Tensor = family.misfit(y, error)
        return found
    return root_mean_square(*distance(family, y, error))


def unfit_up_to(limit: float, curve: Curve, family: Family, t: Tensor, y: Tensor) -> Tensor:
    """Return the misfit (N, S) of the labels ``y`` at ``t``, infinite where it is above a limit.

    Most labels along a curve are far from any family, and their first entries prove it. Where they
    do not, or where curve and family do not tell a part by itself, it may be above the limit.
    """
    classes, first = y.shape[-1], y[..., :TELLING_ENTRIES]
    in_parts = hasattr(family, "least_misfit") and getattr(curve, "errs_in_parts", False)
    if limit == math.inf or classes < 2 * TELLING_ENTRIES or not in_parts:
        return unfit_of(family, y, curve.errors(t, y))
    least = family.least_misfit(first, curve.errors(t, first), classes)  # type: ignore[attr-defined]
    row, column = (~(least > limit)).nonzero(as_tuple=True)
    at, near = t[row, column][:, None], y[row, column][:, None]
    found = torch.full_like(t, math.inf)
    found[row, column] = unfit_of(family, near, curve.take(row).errors(at, near))[:, 0]
    return found


def misfit(curve: Curve, family: Family, t: Tensor, limit: float = math.inf) -> Tensor:
    """Return the distance (N, S) from the family in units of rounding error, root mean square."""

    (found,) = in_pieces(
        lambda some, at: (unfit_up_to(limit, some, family, at, some.labels(at)[0]),), curve, t
    )
    return found


PSEUDO_LABEL_SMALLEST_SCALAR = 1e-4  # a smaller t changes no label by as much as anyone notices
PSEUDO_LABEL_LOGIT_ROUNDINGS = 4.0  # in a logit, whose sum the client may take in any order
PSEUDO_LABEL_LANES = 16  # sums that a processor takes at once
PSEUDO_LABEL_DEEPEST_LOGIT = 100.0
LARGEST = math.sqrt(2)  # ‖p − y‖₂ of two points of the simplex


@dataclass(frozen=True, eq=False)
class PseudoLabels:
    """Ŷ(t) of N clients. ``a = σ W v`` and ``u`` are (N, C), ``b`` (C,), the rest (N,)."""

    a: Tensor
    b: Tensor
    u: Tensor
    relative: float
    tiny: float
    slack: Tensor  # the rounding of u's entries beyond their own size
    reach: Tensor  # how far rounding moves a logit at t = 1
    offset: float  # and at any t
    errs_in_parts: ClassVar[bool] = True  # ``errors`` tells those of the first entries alone

    @classmethod
    @torch.inference_mode()
    def of(cls, head: Head, factors: Factors) -> PseudoLabels:
        """Return the curves behind a batch of head gradients."""
        a = factors.sigma[:, None] * head.logits(factors.v)
        slack = factors.absolute / factors.sigma
        each = PSEUDO_LABEL_LOGIT_ROUNDINGS * factors.relative
        reach = each * (factors.sigma * head.largest_weight + a.abs().amax(-1))
        return cls(
            a, head.b, factors.u, factors.relative, factors.tiny, slack,
            reach + head.largest_row * factors.absolute, each * float(head.b.abs().amax()),
        )  # fmt: skip

    def probabilities(self, t: Tensor) -> Tensor:
        """Return softmax((σ/t) W v + b) at ``t`` (N, S), as (N, S, C)."""
        return torch.softmax(torch.addcdiv(self.b, self.a[:, None], t[..., None]), dim=-1)

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return self.probabilities(t).addcmul_(t[..., None], self.u[:, None], value=-1), t.abs()

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        """Return ``rounding`` of labels, or of their first entries: ``p − y`` is ``t u``."""
        t, first = t[..., None], y.shape[-1]
        size = t.abs()
        p = torch.addcmul(y, t, self.u[:, None, :first])
        moved = self.reach[:, None, None] / size + self.offset
        # p (moved (1 − p) + summed) as moved p (1 + summed/moved − p), for which passes are fast.
        summed = self.relative * _summed(self.u.shape[-1])
        curved = torch.sub(1 + summed / moved, p).mul_(p)
        rounded = torch.mul(size, self._rounding_of_u[..., :first]).add_(self.tiny)
        return rounded.addcmul_(curved, moved)

    @cached_property
    def _rounding_of_u(self) -> Tensor:
        """Return the rounding (N, 1, C) of ``u``'s entries."""
        size: Tensor = torch.linalg.vector_norm(self.u[:, None], dim=-1, keepdim=True)
        return self.relative * self.u[:, None].abs() + self.slack[:, None, None] * size

    def rounding(self, t: Tensor, p: Tensor, y: Tensor) -> Tensor:
        """Return the error of the entries of ``y``, given the probabilities it came from."""
        return self.rounding_of(t, p - y, p, p * (1 - p))

    def rounding_of(self, t: Tensor, delta: Tensor, p: Tensor, curved: Tensor) -> Tensor:
        """Return the error of ``p − δ``, where ``curved`` is how much p moves with its logits."""
        moved = self.reach[:, None, None] / t.abs()[..., None] + self.offset
        rounded = self.relative * (delta.abs() + _summed(p.shape[-1]) * p) + curved * moved
        size: Tensor = torch.linalg.vector_norm(delta, dim=-1, keepdim=True)
        return rounded + self.slack[:, None, None] * size + self.tiny

    @property
    def points_at_once(self) -> int:
        return max(CACHED_ENTRIES // self.u.shape[-1], 1)

    def logits(self) -> Tensor:
        return self.a

    def take(self, rows: Tensor) -> PseudoLabels:
        """Return the curves of some clients; the row of a single one serves the scalars of all."""
        return self if len(self.u) == 1 else self.take_each(rows)

    def take_each(self, rows: Tensor) -> PseudoLabels:
        """Return the curves of some clients, a row of memory each."""
        taken = PseudoLabels(
            self.a[rows], self.b, self.u[rows], self.relative, self.tiny,
            self.slack[rows], self.reach[rows], self.offset,
        )  # fmt: skip
        vars(taken)["_rounding_of_u"] = self._rounding_of_u[rows]  # known, and need not be again
        return taken

    def interval(self, largest: Tensor | None = None) -> Interval:
        """Return the ``t`` of both signs, from a softmax that is one-hot to the last bit to √2."""
        ordered = self.a.sort(-1).values
        gaps = torch.stack([ordered[:, -1] - ordered[:, -2], ordered[:, 1] - ordered[:, 0]])
        width = ordered[:, -1] - ordered[:, 0]
        deepest = max(PSEUDO_LABEL_DEEPEST_LOGIT, -math.log(self.tiny) - math.log(self.relative))
        smallest = gaps.maximum(1e-6 * width).clamp_min(self.tiny) / deepest
        ends = torch.full_like(width, LARGEST)
        if largest is not None:
            ends = largest.clamp_min(PSEUDO_LABEL_SMALLEST_SCALAR)
        everyone = torch.arange(len(width), device=width.device)
        signs = width.new_tensor([1.0, -1.0]).repeat_interleave(len(width))
        smallest = smallest.minimum(PSEUDO_LABEL_SMALLEST_SCALAR * ends).flatten()
        density = density_for(self.a.shape[-1])
        return Interval(everyone.repeat(2), signs, smallest, ends.repeat(2), density)


def _summed(classes: int) -> float:
    """Return roundings in a probability, a quotient of sums, times the sum of a label's entries."""
    return 1 + math.sqrt(classes) / PSEUDO_LABEL_LANES + max(classes / PSEUDO_LABEL_LANES - 1, 0)


# The search for the factor of a share starts from these parts of the segment.
FACTOR_SEARCH_STARTS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.0)
FACTOR_SEARCH_FEW_CLASSES = 64  # classes beyond which every start leads to the same place
FACTOR_SEARCH_FEWER_STARTS = (0.05, 0.5, 1.0)  # the starts with more classes than that
FACTOR_SEARCH_FINEST = 64  # grid points per factor e of |τ|
FACTOR_SEARCH_BEYOND = 1.001  # of the segment: a label on the edge of the simplex lies at its end
FACTOR_SEARCH_LARGEST_FACTOR = 1e6  # the largest factor anyone multiplies a share by
FACTOR_SEARCH_STEPS = 3  # steps: the distance from a family is piecewise linear along the segment
FACTOR_SEARCH_FACTORS = 33  # points of the segment at which other labels are looked for
FACTOR_SEARCH_SAME_FACTOR = 0.01  # relative: two factors further apart than this are different


@dataclass(frozen=True, eq=False)
class Segment:
    """``y(s) = p − s u`` of N clients at a known ``τ``: ``p``, ``u``, ``error`` (N, C)."""

    p: Tensor
    u: Tensor
    error: Tensor  # of p
    relative: float
    slack: Tensor  # the rounding of u's entries beyond their own size

    @classmethod
    def at(cls, pseudo: PseudoLabels, tau: Tensor, error: Tensor) -> Segment:
        """Return the segment behind ``τ`` (N,), itself known to within ``error`` (N,)."""
        p = pseudo.probabilities(tau[:, None])[:, 0]
        shift = pseudo.a.abs().amax(-1) * error / tau.square()
        rounding = pseudo.rounding(tau[:, None], p[:, None], p[:, None])[:, 0]
        moved = rounding + p * (1 - p) * shift[:, None]
        slack = pseudo.slack.expand(len(tau))
        return cls(p, pseudo.u * tau.sign()[:, None], moved, pseudo.relative, slack)

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return self.p[:, None] - t[..., None] * self.u[:, None], t

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        known = self.error[:, None] + self.relative * (self.p[:, None] - y).abs()
        return known + self.slack[:, None, None] * t[..., None]

    @property
    def points_at_once(self) -> int:
        return max(CACHED_ENTRIES // self.u.shape[-1], 1)

    def logits(self) -> None:
        return None  # the prediction is known, and does not move

    def take(self, rows: Tensor) -> Segment:
        kept = (self.p[rows], self.u[rows], self.error[rows])
        return Segment(*kept, self.relative, self.slack[rows])

    def interval(self) -> Interval:
        """Return the interval of ``s``, from nearly nothing to where an entry turns negative."""
        end = segment_end(self.p + self.error, self.u - self.slack[:, None]) * FACTOR_SEARCH_BEYOND
        return Interval.positive(end * 1e-3, end, density_for(self.p.shape[-1]))


@dataclass(frozen=True, eq=False)
class Rescaled:
    """Ŷ(τ) = p(τ) − s u with the ``s`` that brings it nearest to a family."""

    pseudo: PseudoLabels
    family: Family

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        held = len(FACTOR_SEARCH_STARTS) * self.pseudo.u.shape[-1]
        columns = max(CACHED_ENTRIES // (held * len(t)), 1) if len(t) else t.shape[1]
        parts = [self._labels(part) for part in torch.split(t, max(columns, 1), 1)]
        y, s = zip(*parts, strict=True)
        return torch.cat(y, 1), torch.cat(s, 1)

    def _labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        p = self.pseudo.probabilities(t)
        u = self.pseudo.u[:, None] * t.sign()[..., None]
        blurred = p + self.pseudo.rounding(t, p, p), u - self.pseudo.slack[:, None, None]
        end = segment_end(*blurred).maximum(t.abs() / FACTOR_SEARCH_LARGEST_FACTOR)[..., None]
        few = p.shape[-1] <= FACTOR_SEARCH_FEW_CLASSES
        starts = FACTOR_SEARCH_STARTS if few else FACTOR_SEARCH_FEWER_STARTS
        s = end * torch.tensor(starts, dtype=t.dtype, device=t.device)
        for _ in range(FACTOR_SEARCH_STEPS):
            rest, ahead = (self._rest(p, u, s * factor) for factor in (1.0, 1 + 1e-6))
            slope = (ahead - rest) / (1e-6 * s[..., None])
            step = (rest * slope).sum(-1) / slope.square().sum(-1).clamp_min(1e-300)
            s = torch.minimum((s - step).maximum(1e-3 * end), FACTOR_SEARCH_BEYOND * end)
        far = self._rest(p, u, s).norm(dim=-1) / s
        s = s.gather(-1, far.argmin(-1, keepdim=True))
        return p - s * u, s[..., 0]

    def _rest(self, p: Tensor, u: Tensor, s: Tensor) -> Tensor:
        y = p[..., None, :] - s[..., None] * u[..., None, :]
        return y - self.family.project(y)

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        return self.pseudo.rounding(t, self.pseudo.probabilities(t), y)

    def interval(self) -> Interval:
        """Return the interval of τ for any factor, up to where the softmax is entirely flat."""
        where = self.pseudo.interval(self.pseudo.a.abs().amax(-1) / self.pseudo.relative)
        # Two unknowns have wide minima.
        return replace(where, density=min(where.density, FACTOR_SEARCH_FINEST))

    @property
    def points_at_once(self) -> int:
        return self.pseudo.points_at_once

    def logits(self) -> Tensor:
        return self.pseudo.a

    def take(self, rows: Tensor) -> Rescaled:
        return Rescaled(self.pseudo.take(rows), self.family)


def other_factors_fit(segment: Segment, family: Family, best: Tensor, fit: float) -> bool:
    """Return whether labels of a family lie on one of N segments apart from ``best`` (N,)."""
    where = segment.interval()
    steps = torch.linspace(0, 1, FACTOR_SEARCH_FACTORS, dtype=best.dtype, device=best.device)
    s = where.smallest[:, None] * (where.largest / where.smallest)[:, None] ** steps
    elsewhere = (s / best[:, None] - 1).abs() > FACTOR_SEARCH_SAME_FACTOR
    return bool((elsewhere & (misfit(segment, family, s) <= fit)).any())


def segment_end(p: Tensor, u: Tensor) -> Tensor:
    """Return the largest ``s`` (…) at which no entry of ``p − s u`` (…, C) is negative."""
    return torch.where(u > 0, p / u.clamp_min(1e-300), torch.inf).amin(-1).clamp(1e-300, LARGEST)
