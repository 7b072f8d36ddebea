"""Search all samples of a batch together, each from the row of its class (§20).

Row c of ``Σ δ_i x_iᵀ`` is what all predictions of class c share, less the features of its samples.
So a class that occurs starts its own samples, and all of them are solved for at once: ``N R``
unknowns and the labels' coefficients for ``C R`` equations, where ``R`` is the rank. Labels enter
linearly, so every trial of features has its own best labels. The normal equations are sums of
products of small blocks; the derivatives themselves are never held.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from softleak.batches.systems import (
    SHORTEST_VECTOR,
    FoundSamples,
    HeadSpace,
    SamplePoints,
    Supports,
    row_errors,
)

FIRST_DAMPING = 1e-3  # relative to the diagonal of the normal matrix
LEAST_DAMPING = 1e-15
RELAXED, STIFFENED = 0.33, 2.0  # the factor of the damping after a good and after a bad step
STIFFER = 20  # how often a step is shortened before the search ends
SETTLED = 1e-3  # a step that lowers the cost by this part of it or less is the last
LABEL_RIDGE = 1e-13  # lets labels be solved for where two samples are alike
FURTHER_FEATURE = 30.0  # roundings that the further feature, which is one, may be off by


@dataclass(frozen=True, eq=False)
class RowSystem:
    """The equations ``Σ δ_i z_iᵀ = R`` of N samples, with features ``z`` (N, R) in terms of V."""

    space: HeadSpace  # the factors of the head's gradient
    supports: Supports  # the flat of each sample's label, in their order

    @cached_property
    def rows(self) -> Tensor:
        """Return what the rows of the gradient are (C, R), in terms of V."""
        return self.space.factor * self.space.spread * self.space.S

    @cached_property
    def errors(self) -> Tensor:
        """Return the standard error (C, 1) of every equation of a row."""
        return (row_errors(self.space) * self.space.factor)[:, None]

    @cached_property
    def _logits(self) -> Tensor:
        return self.space.weights @ self.space.V

    @cached_property
    def _further(self) -> Tensor | None:
        """Return a vector (R,) whose product with every ``z`` is one, in standard errors."""
        constraint = self.space.constraint
        if constraint is None:
            return None
        return constraint / (self.space.factor * self.space.S) / self._further_error

    @property
    def _further_error(self) -> float:
        return FURTHER_FEATURE * self.space.relative

    def predicted(self, z: Tensor) -> Tensor:
        """Return the probabilities (N, C) of features (N, R)."""
        return self.space.activate(z @ self._logits.T + self.space.offset)

    def label(self, c: Tensor) -> Tensor:
        """Return the labels (N, C) of coefficients (N, K)."""
        return self.supports.origin + (self.supports.directions @ c[..., None])[..., 0]

    def residuals(self, z: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return residuals (C, R), ``δ`` (N, C) and those of the further feature (N,), if any."""
        delta = self.predicted(z) - self.label(c)
        rest = (delta.T @ z - self.rows) / self.errors
        further = self._further
        return rest, delta, None if further is None else z @ further - 1 / self._further_error

    def cost(self, z: Tensor, c: Tensor) -> float:
        """Return the sum of squares of all residuals."""
        rest, _, further = self.residuals(z, c)
        cost = float(rest.square().sum())
        return cost if further is None else cost + float(further.square().sum())

    def misfit(self, z: Tensor, c: Tensor) -> float:
        """Return the root mean square of the residuals, in standard errors."""
        return math.sqrt(self.cost(z, c) / self.rows.numel())

    def labels_of(self, z: Tensor) -> Tensor:
        """Return the coefficients (N, K) of the labels that explain most, given the features."""
        T = self.supports.directions
        N, C, K = T.shape
        if not K:
            return z.new_zeros(N, 0)
        rest = ((self.predicted(z) - self.supports.origin).T @ z - self.rows) / self.errors
        own = (T / self.errors).permute(1, 0, 2).reshape(C, N * K)
        H = ((own.T @ own).reshape(N, K, N, K) * (z @ z.T)[:, None, :, None]).reshape(N * K, N * K)
        right = (own.T @ rest).reshape(N, K, -1) * z[:, None]
        scale = H.diagonal().clamp_min(SHORTEST_VECTOR).rsqrt()
        H = scale[:, None] * H * scale
        H.diagonal().add_(LABEL_RIDGE)
        solved = torch.linalg.solve_ex(H, scale * right.sum(-1).flatten())[0]
        found: Tensor = (solved * scale).reshape(N, K)
        return found

    def normal(self, z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normal matrix (U, U) and the slope (U,) of all unknowns of each sample."""
        rest, delta, off = self.residuals(z, c)
        N, R = z.shape
        K, delta = self.supports.unknowns, delta / self.errors.T
        own = torch.cat([self.space.slopes(self.predicted(z), self._logits),
                         -self.supports.directions], -1) / self.errors  # fmt: skip
        flat = own.permute(1, 0, 2).reshape(len(rest), -1)
        H = (flat.T @ flat).reshape(N, R + K, N, R + K) * (z @ z.T)[:, None, :, None]
        mixed = torch.einsum("ick,jc->ikj", own, delta)[..., None] * z[:, None, None, :]
        H[..., :R] += mixed
        H[:, :R] += mixed.permute(2, 3, 0, 1)
        H[:, :R, :, :R] += (delta @ delta.T)[:, None, :, None] * torch.eye(R).to(z)[None, :, None]
        slope = ((own.mT @ rest) * z[:, None]).sum(-1)
        slope[:, :R] += delta @ rest
        if off is not None and self._further is not None:
            i = torch.arange(N, device=z.device)
            H[i, :R, i, :R] += self._further[:, None] * self._further
            slope[:, :R] += off[:, None] * self._further
        return H.reshape(N * (R + K), N * (R + K)), slope.flatten()

    def solve(self, z: Tensor, steps: int) -> tuple[Tensor, Tensor, int]:
        """Return features and coefficients after Levenberg–Marquardt, and how many steps it took.

        It takes at most so many ``steps``.
        """
        c, taken = self.labels_of(z), 0
        cost, damping = self.cost(z, c), FIRST_DAMPING
        while taken < steps:
            taken += 1
            H, slope = self.normal(z, c)
            diagonal = H.diagonal().clone()
            for _ in range(STIFFER):
                moved = self._moved(z, H, slope, damping * diagonal)
                if moved is not None:
                    other = self.labels_of(moved)
                    lower = self.cost(moved, other)
                    if lower < cost:
                        break
                damping *= STIFFENED
            else:
                break
            settled = cost - lower <= SETTLED * cost
            z, c, cost, damping = moved, other, lower, max(RELAXED * damping, LEAST_DAMPING)
            if settled:
                break
        return z, c, taken

    def _moved(self, z: Tensor, H: Tensor, slope: Tensor, lift: Tensor) -> Tensor | None:
        A = H.clone()
        A.diagonal().add_(lift + LEAST_DAMPING * H.diagonal().amax())
        factor, failed = torch.linalg.cholesky_ex(A)
        if int(failed):
            return None
        step = torch.cholesky_solve(slope[:, None], factor)[:, 0].reshape(len(z), -1)
        return z - step[:, : z.shape[1]]

    def found(self, z: Tensor, c: Tensor, kind: Tensor) -> FoundSamples:
        """Return the samples in terms of the other systems."""
        b = z / (self.space.factor * self.space.S)
        label, p = self.label(c), self.predicted(z)
        a = torch.linalg.inv_ex(b)[0].mT if len(b) == b.shape[1] else self.space.left(p - label)
        return FoundSamples(SamplePoints(a, b, label, p), kind)


ABSENT = 0.3  # a count nearer to zero than this is that of a class without samples, at first
FITTED_SUMS = 4  # how often the sum of all features is fitted to the rows of absent classes
UNSURE = 0.75  # relative: how far the mean prediction of a class may be off that for noise
MOVED = 10.0  # and how far in standard deviations of predictions for noise
DOUBTED = 2  # of the classes that stand out, how many are given up at most
EDGE = 8.0  # a count of so many usual ones is that of a class with samples
SPREAD = 0.35  # the relative spread of the lengths of features


@dataclass(frozen=True, eq=False)
class RowCounts:
    """How often each class seems to occur, and the sum of its samples' features."""

    count: Tensor  # (C,) estimated, in samples of usual length
    total: Tensor  # (C, R) the sum of the features of its samples, in terms of V
    unsure: Tensor  # (C,) by how much predictions that are not known can move the count

    @classmethod
    def of(cls, space: HeadSpace, features: Tensor) -> RowCounts:
        """Count classes by the rows of the gradient, of which most are of absent classes."""
        rows = space.factor * space.spread * space.S
        size = space.factor
        if len(features):
            usual = space.widened(features) @ space.V
            each = space.activate(usual @ (space.weights @ space.V).T + space.offset)
            p = each.mean(0)
            unsure = (MOVED * each.std(0, correction=0) / p).clamp_max(UNSURE)
            every = size * usual.mean(0)
        else:
            p, unsure = space.activate(space.offset), torch.full_like(space.offset, UNSURE)
            few = rows.norm(dim=1).argsort()[: len(rows) // 2]
            every = rows[few].mean(0) / p[few].mean()
        for _ in range(FITTED_SUMS):
            total = p[:, None] * every - rows
            count = size * (total @ every) / every.square().sum().clamp_min(SHORTEST_VECTOR)
            absent = (count.abs() < ABSENT).to(p)
            if not float(absent.sum()):
                break
            every = (absent * p) @ rows / (absent * p.square()).sum().clamp_min(SHORTEST_VECTOR)
        return cls(count, total, unsure * size * p)

    def sets(self, size: int) -> Iterator[tuple[int, ...]]:
        """Yield sets of ``size`` classes with repetition, the likeliest first.

        Classes that stand out of those without samples are in all of them at first.
        """
        count, unsure = self.count, self.unsure
        edge = EDGE * count.abs().median() + unsure
        stand_out = (count - edge).topk(min(size, int((count > edge).sum()))).indices.tolist()
        for doubtful in range(min(DOUBTED, len(stand_out)) + 1):
            yield from self._completed(size, sorted(stand_out[: len(stand_out) - doubtful]))

    def _completed(self, size: int, certain: list[int]) -> Iterator[tuple[int, ...]]:
        places = sorted(self._further(size, certain), reverse=True)
        further = size - len(certain)
        if len(places) < further:
            return
        # A set takes some places of the list; the next ones have one of them moved on.
        first: tuple[int, ...] = tuple(range(further))
        queue, seen = [(0.0, first)], {first}
        told: set[tuple[int, ...]] = set()
        while queue:
            loss, taken = heapq.heappop(queue)
            classes = tuple(sorted(certain + [places[k][1] for k in taken]))
            if classes not in told:
                told.add(classes)
                yield classes
            for i, k in enumerate(taken):
                if k + 1 < len(places) and k + 1 not in taken:
                    moved = (*taken[:i], k + 1, *taken[i + 1 :])
                    if moved not in seen:
                        seen.add(moved)
                        heapq.heappush(queue, (loss + places[k][0] - places[k + 1][0], moved))

    def _further(self, size: int, certain: list[int]) -> Iterator[tuple[float, int]]:
        """Yield each class that may have a further sample, with how much that explains its count.

        The count of n samples is n, give or take ``SPREAD √n``, and chance has the last word.
        """
        chance = math.log(size / len(self.count))

        def likelihood(count: float, n: int) -> float:
            off = count - n
            return n * chance - math.lgamma(n + 1) - off**2 / (2 * SPREAD**2 * max(n, 1))

        for c, (count, unsure) in enumerate(
            zip(self.count.tolist(), self.unsure.tolist(), strict=True)
        ):
            held = int(c in certain)
            most = held + 1 + int(max(count, 0.0))
            for n in range(held, most if held or count + unsure > ABSENT else 0):
                nearest = min(max(count, 1.0), count + unsure) if not held else count
                yield likelihood(nearest, n + 1) - likelihood(nearest, n), c


SPLIT = 0.7  # how far samples of one class start apart, in differences of other samples
SETS_TRIED = 40  # the number of sets of classes that are fitted at most
SPLITS_TRIED = 2  # the number of starts for a set in which a class occurs twice
FIRST_STEPS, LAST_STEPS = 20, 200  # of each start, and of one that is worth following
MOST_STEPS = 3000  # of all starts together
MOST_WORK = 3.5e11  # the number of all steps times that of the unknowns, cubed
WORTH = 1e4  # a start is followed if it misses by less than this many standard errors
FITS = 30.0  # a fit that misses by fewer is worth weighing anew
NEAR = 1e3  # one that misses by fewer is shown, but not claimed


@dataclass(frozen=True, eq=False)
class RowFit:
    """Samples that a search from rows led to."""

    found: FoundSamples  # with their classes as kinds
    misfit: float  # the root mean square of the residuals, in standard errors


def fit_rows(space: HeadSpace, supports: Supports, features: Tensor, size: int) -> Iterator[RowFit]:
    """Yield ``size`` samples each time that they explain the gradient better than any before.

    ``supports`` has one flat for each class. The work is bounded, whatever the gradient.
    """
    counts = RowCounts.of(space, features)
    generator = torch.Generator().manual_seed(0)
    unknowns = size * (space.rank + supports.unknowns)
    left, best = int(min(MOST_STEPS, MOST_WORK / unknowns**3)), math.inf
    for classes in islice(counts.sets(size), SETS_TRIED):
        kind = torch.tensor(classes, device=space.U.device)
        system = RowSystem(space, supports.take(kind))
        for _ in range(SPLITS_TRIED if len(set(classes)) < size else 1):
            if left < FIRST_STEPS:
                return
            z, c, taken = system.solve(_split(counts, kind, generator), FIRST_STEPS)
            if taken == FIRST_STEPS and system.misfit(z, c) < WORTH:
                z, c, more = system.solve(z, min(LAST_STEPS, left - taken))
                taken += more
            left, misfit = left - taken, system.misfit(z, c)
            if misfit < best:
                best = misfit
                yield RowFit(system.found(z, c, kind), misfit)


def _split(counts: RowCounts, kind: Tensor, generator: torch.Generator) -> Tensor:
    """Return a start (N, R) of each sample: its class's sum, split at random if it has several."""
    shared = (kind[:, None] == kind).sum(1)
    z = counts.total[kind] / shared[:, None]
    for k in sorted(set(kind[shared > 1].tolist())):
        rows = (kind == k).nonzero()[:, 0]
        i, j = torch.randint(len(kind), (2, len(rows)), generator=generator).to(kind.device)
        apart = SPLIT * (z[i] - z[j])
        drawn = torch.randn(apart.shape, generator=generator, dtype=torch.double).to(z)
        apart = apart + SPLIT / 4 * z.std(0, correction=0) * drawn
        z[rows] += apart - apart.mean(0)
    return z
