"""Factor the gradient of a batch, and solve for all of its samples together (§9).

The gradient of a batch is ``G = (1/B) Σ δ_i x_iᵀ = U S Vᵀ``. For some invertible matrix ``A`` with
columns ``a_i``, and the columns ``b_i`` of ``A⁻ᵀ``,

    δ_i = U a_i        x_i = B V S b_i        a_i·b_j = [i = j]

so that every sample is described by ``b_i``, as many numbers as there are samples. The unknowns are
the ``b_i`` of all samples, the coefficients of their labels and, if it is unknown, the scale.
``A = B⁻ᵀ`` couples the samples, so ``R`` samples have ``R (C − 1)`` equations for ``R²`` unknowns
and the coefficients. Equations are weighed by their rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from softleak.core.factors import OWN, SECOND_VALUE, SMALLEST_NORMAL, head_gradients
from softleak.core.families import Family, Mixed, OneHot, Smoothed, SmoothedMixed
from softleak.core.head import Head
from softleak.core.share import GradientShare
from softleak.numerics.least_squares import Levenberg

SKETCH = 24  # columns of a first random sketch; it doubles until it holds the whole space


@dataclass(frozen=True, eq=False)
class GradientSpace:
    """``G = R Vᵀ`` up to rounding, with ``R`` (m, B) and orthonormal ``V`` (n, B)."""

    R: Tensor  # the coordinates of each row of ``G``
    V: Tensor  # the basis of its row space
    errors: Tensor  # the standard error (m,) of an entry of each row, from what ``R Vᵀ`` leaves

    @property
    def rank(self) -> int:
        """Return the number of samples behind the gradient, at least."""
        return self.R.shape[1]

    @classmethod
    def of(cls, G: Tensor, relative: float, noise: float) -> GradientSpace:
        """Factor a gradient (m, n) in float64."""
        V = _row_space(G, relative, noise)
        R = G @ V
        freedom = max(G.shape[1] - V.shape[1], 1)
        left = (G - R @ V.T).square().sum(1).div(freedom).sqrt()
        floor = max(relative, OWN) * G.square().mean(1).sqrt()
        return cls(R, V, left.maximum(floor).clamp_min(max(noise, SMALLEST_NORMAL)))


def _row_space(G: Tensor, relative: float, noise: float) -> Tensor:
    """Return an orthonormal basis (n, B) of the rows of ``G``, but for rounding."""
    generator = torch.Generator().manual_seed(0)
    columns = SKETCH
    while True:
        columns = min(columns, *G.shape)
        drawn = torch.randn(G.shape[1], columns, generator=generator, dtype=torch.double)
        Q = torch.linalg.qr(G @ drawn.to(G))[0]
        _, values, rows = torch.linalg.svd(Q.T @ G, full_matrices=False)
        largest = float(values[0]) if len(values) else 0.0
        spread = noise * (math.sqrt(G.shape[0]) + math.sqrt(G.shape[1]))
        least = SECOND_VALUE * max(relative, OWN) * largest
        rank = int((values > math.hypot(least, 2 * spread)).sum())
        if rank < columns or columns == min(G.shape):
            return torch.as_tensor(rows[:rank].T)
        columns *= 2


SHORTEST_VECTOR = 1e-300  # keeps a quotient by the length of a vector finite
INDISTINCT = 1e-5  # a direction of labels this close to the span of ``U`` counts as within it
SHORTEST_COLUMN = 0.1  # columns shorter than this part of the longest are divided by that part
LEVELLED_EDGE = 4.0  # a singular value above this many times what rounding leaves is a sample


@dataclass(frozen=True, eq=False)
class HeadSpace:
    """The singular vectors of the head's gradient, and what logits are in their terms.

    Where the gradient ``g = (1/B) Σ δ_i`` of the head's bias was sent, it stands beside ``G`` as
    the column of a further feature, which is one for every sample. Rounding is a part of every
    entry, so columns are divided by their lengths: then all of them are equally exact. The same
    holds of rows, which ``levelled`` divides as well.
    """

    U: Tensor  # (C, R) the left singular vectors: they span all ``δ_i = p_i − y_i``, times ``rows``
    S: Tensor  # (R,) the singular values that stand above rounding
    V: Tensor  # (I, R) the right singular vectors, with a further row if the bias is used
    # (C, I) the head's weights in terms of the divided features, with a further column if the bias
    # is used.
    weights: Tensor
    columns: Tensor  # (I,) what features are multiplied by: one over the length of each column
    rows: Tensor  # (C,) what differences are multiplied by: one, or one over each row's length
    offset: Tensor  # (C,) what logits hold beside ``weights``: the bias, or zero if it is used
    with_bias: bool  # whether there is a further feature
    # What ``V S b`` is multiplied by to give a feature: the number of samples, if the share is the
    # mean gradient itself.
    factor: float
    gradient: Tensor  # (C, I) the gradient in float64, columns divided, with the further column
    relative: float  # the rounding of an entry relative to its size
    absolute: float  # the rounding of an entry whatever its size
    smallest: float  # entries below this are less exact than ``relative``
    is_levelled: bool = False  # whether rows are divided
    scaled: bool = True  # whether the scale is known, so that ``a·b = 1`` for every sample

    @property
    def rank(self) -> int:
        """Return R, the number of samples that can be told apart."""
        return len(self.S)

    @property
    def classes(self) -> int:
        return len(self.U)

    @cached_property
    def logit_map(self) -> Tensor:
        """Return ``M`` (C, R), so that the logits of a sample are ``M b + offset``."""
        return self.factor * (self.weights @ self.V) * self.S

    def predicted(self, b: Tensor) -> Tensor:
        """Return the probabilities (…, R, C) of samples ``b`` (…, R, R)."""
        return torch.softmax(b @ self.logit_map.T + self.offset, -1)

    @cached_property
    def spread(self) -> Tensor:
        """Return the map (C, R) from ``a`` to the difference ``δ``."""
        return self.U / self.rows[:, None]

    def left(self, differences: Tensor) -> Tensor:
        """Return ``a`` (…, R) of differences (…, C): of their part in the span of ``U``."""
        return (differences * self.rows) @ self.U

    @cached_property
    def constraint(self) -> Tensor | None:
        """Return a vector (R,) whose product with every ``b_i`` is one, or None without a bias."""
        if not self.with_bias:
            return None
        return self.factor * self.V[-1] * self.S / self.columns[-1]

    @cached_property
    def indistinct(self) -> float:
        """Return the distance from the span of ``U`` below which directions count as within it."""
        return max(INDISTINCT, self.relative * float(self.S[0] / self.S[-1]))

    @cached_property
    def weight_lengths(self) -> Tensor:
        """Return the length (C,) of each row of the weights."""
        return self.weights.square().sum(1).sqrt()

    @property
    def mean_difference(self) -> Tensor:
        """Return the mean of all ``δ`` (C,), which the gradient of the head's bias is."""
        return self.gradient[:, -1] / self.columns[-1]

    def divided(self, b: Tensor) -> Tensor:
        """Return the divided features (N, I) of samples ``b`` (N, R)."""
        return self.factor * (b * self.S) @ self.V.T

    def features(self, b: Tensor) -> Tensor:
        """Return the features (N, I) of samples ``b`` (N, R), without the further one."""
        x = self.divided(b) / self.columns
        return x[:, :-1] if self.with_bias else x

    def coordinates(self, features: Tensor) -> Tensor:
        """Return ``b`` (N, R) of features (N, I): of their part in the span of ``V``."""
        return (self.widened(features) @ self.V) / (self.factor * self.S)

    def widened(self, features: Tensor) -> Tensor:
        """Return the divided features (N, I) of features: with the further one, if it is used."""
        if self.with_bias:
            features = torch.cat([features, torch.ones_like(features[:, :1])], 1)
        return features * self.columns

    def levelled(self) -> HeadSpace:
        """Return the space of the gradient whose rows are divided by their lengths too.

        A network that is sure of its samples sends rows of very different size, each of them
        exact to a part of its own: a sample far below the others in one row can lead another.
        """
        classes, inputs = self.gradient.shape
        least = max(self.absolute, self.smallest) * inputs**0.5
        rows = 1 / self.gradient.norm(dim=1).clamp_min(least)
        gradient = self.gradient * rows[:, None]
        U, S, Vh = torch.linalg.svd(gradient, full_matrices=False)
        rounding = self.relative * float(gradient.square().mean().sqrt())
        noise = LEVELLED_EDGE * rounding + 2 * self.absolute * float(rows.max())
        rank = int((noise * (classes**0.5 + inputs**0.5) < S).sum())
        return replace(self, U=U[:, :rank], S=S[:rank], V=Vh[:rank].T, rows=rows, is_levelled=True)

    def times(self, factor: float) -> HeadSpace:
        """Return the same space for a share whose scale is another one."""
        return replace(self, factor=factor)

    @classmethod
    def of(cls, head: Head, share: GradientShare, *, use_bias: bool = True) -> HeadSpace:
        """Factor the head's gradient in a share; the factor is the rank, for want of a size."""
        (sent,) = head_gradients(head, [share])
        gradient, weights = sent.double(), head.W.double()
        offset, absolute = head.b, share.noise(head.weight_name)
        with_bias = use_bias and head.has_bias and head.bias_name in share
        if with_bias:
            column = share[head.bias_name].double().to(gradient.device)[:, None]
            gradient = torch.cat([gradient, column], 1)
            weights = torch.cat([weights, head.b[:, None]], 1)
            offset = torch.zeros_like(head.b)
            absolute = max(absolute, share.noise(head.bias_name))
        lengths = gradient.norm(dim=0)
        # A column much shorter than the others, or lost in known errors, is not blown up to theirs.
        floor = SHORTEST_COLUMN * lengths.max() + absolute * len(gradient) ** 0.5
        columns = 1 / lengths.clamp_min(float(floor) or 1.0)
        gradient, weights = gradient * columns, weights / columns
        _, S, Vh = torch.linalg.svd(gradient, full_matrices=False)
        relative = max(share.resolution(head.weight_name, head.dtype), OWN)
        usual = float(columns.square().mean().sqrt())
        absolute, smallest = absolute * usual, share.smallest(head.weight_name, head.dtype) * usual
        edge = 2 * sum(side**0.5 for side in gradient.shape) * absolute
        rank = int((SECOND_VALUE * relative * S[0] + edge < S).sum())
        # Rows of ``G V`` are exact to a part of their own size, ``U`` to one of the largest.
        V = Vh[:rank].T
        U = gradient @ V / S[:rank]
        space = (U, S[:rank], V, weights, columns, torch.ones_like(offset))
        return cls(*space, offset, with_bias, float(rank), gradient, relative, absolute, smallest)


@dataclass(frozen=True, eq=False)
class Supports:
    """Flats of labels: ``y = origin + directions c``."""

    classes: tuple[tuple[int, ...], ...]  # the classes that each flat is spanned by
    origin: Tensor  # (N, C) one label of each flat
    directions: Tensor  # (N, C, K) the directions of each flat; none for one-hot labels

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def unknowns(self) -> int:
        """Return K, the number of coefficients of a label."""
        return self.directions.shape[-1]

    def opened(self) -> Supports:
        """Return the flats of one class with that class's own entry open."""
        alone = torch.tensor([len(names) == 1 for names in self.classes]).to(self.origin)
        further = self.origin * alone[:, None]
        return replace(self, directions=torch.cat([self.directions, further[..., None]], -1))

    def take(self, rows: Tensor) -> Supports:
        names = tuple(self.classes[i] for i in rows.tolist())
        return Supports(names, self.origin[rows], self.directions[rows])


def supports_of(family: Family, count: int, likely: Sequence[int]) -> Supports | None:
    """Return the flats of a family of labels, of which only the ``likely`` classes stand out."""
    mixed, smoothed = {
        OneHot(): (1, False), Smoothed(): (1, True), Mixed(1): (1, False), Mixed(2): (2, False),
        SmoothedMixed(1): (1, True), SmoothedMixed(2): (2, True),
    }.get(family, (0, False))  # fmt: skip
    if not mixed:
        return None
    corners = torch.eye(count, dtype=torch.double)
    sets = tuple(combinations(sorted(likely), mixed))
    index = torch.tensor(sets, dtype=torch.long).reshape(-1, mixed)
    origin = corners[index[:, -1]]
    directions = [corners[index[:, 0]] - origin] if mixed == 2 else []
    if smoothed:
        directions.append(1 / count - origin)
    none = origin.new_zeros(*origin.shape, 0)
    return Supports(sets, origin, torch.stack(directions, -1) if directions else none)


def joined_supports(one: Supports, other: Supports) -> Supports:
    """Return the flats of both, in this order; missing directions are zero."""
    most = max(one.unknowns, other.unknowns)
    directions = [F.pad(each.directions, (0, most - each.unknowns)) for each in (one, other)]
    origin = torch.cat([one.origin, other.origin])
    return Supports(one.classes + other.classes, origin, torch.cat(directions))


EXPLAINED_WHOLLY = 1e-12  # an entry of which so little is left has no residual


class SamplePoints(NamedTuple):
    """Points of the system: ``a`` and ``b`` (N, R), labels and probabilities (N, C)."""

    a: Tensor
    b: Tensor
    label: Tensor
    p: Tensor


@dataclass(frozen=True, eq=False)
class FoundSamples:
    """Samples that fit, with the flat of labels that each belongs to (N,)."""

    at: SamplePoints
    kind: Tensor

    @classmethod
    def none(cls, space: HeadSpace) -> FoundSamples:
        a, p = space.U.new_zeros(0, space.rank), space.U.new_zeros(0, space.classes)
        return cls(SamplePoints(a, a, p, p), torch.zeros(0, dtype=torch.long, device=a.device))

    def take(self, rows: Tensor | list[int]) -> FoundSamples:
        rows = torch.as_tensor(rows, dtype=torch.long, device=self.kind.device)
        return FoundSamples(SamplePoints(*(part[rows] for part in self.at)), self.kind[rows])

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, eq=False)
class SampleSystem:
    """The system of one sample, with ``b`` in the flat ``start + basis β``."""

    space: HeadSpace  # the factors of the head's gradient
    supports: Supports  # the flats of labels
    basis: Tensor  # (R, K) the directions that ``b`` is searched in
    start: Tensor  # (R,) a point of the flat

    @classmethod
    def whole(cls, space: HeadSpace, supports: Supports) -> SampleSystem:
        """Return the system whose ``b`` may be anything."""
        identity = torch.eye(space.rank, dtype=space.U.dtype, device=space.U.device)
        return cls(space, supports, identity, torch.zeros_like(identity[0]))

    @cached_property
    def logits(self) -> tuple[Tensor, Tensor]:
        """Return the map (C, K) from ``β`` to logits, and the logits (C,) at ``β = 0``."""
        M = self.space.logit_map
        return M @ self.basis, self.space.offset + M @ self.start

    def _predicted(self, beta: Tensor) -> Tensor:
        """Return the probabilities (N, C) at points ``β`` (N, K)."""
        M, offset = self.logits
        return torch.softmax(beta @ M.T + offset, -1)

    def _moved(self, p: Tensor) -> Tensor:
        """Return the derivatives (N, C, K) of probabilities (N, C) by ``β``, times ``rows``."""
        M, _ = self.logits
        return self.space.rows[:, None] * (p[..., None] * (M - (p @ M)[:, None, :]))

    @cached_property
    def _flats(self) -> tuple[Tensor, Tensor]:
        """Return orthonormal directions (N, C, K) left of each flat, and those of their labels."""
        T = self.supports.directions
        if not T.shape[-1]:
            return T, T
        u, s, labels = beyond(self.space, T)
        # A direction that ``U a`` explains as well is left to the other equations.
        least = self.space.indistinct
        told = torch.where(s > least, 1 / s.clamp_min(least), 0.0)
        return u * (told > 0)[:, None, :], labels * told[:, None, :]

    @cached_property
    def _moved_by_labels(self) -> Tensor:
        """Return how far ``a`` moves (N, R, K) with the coefficients of each flat."""
        return self.space.U.T @ (self.space.rows[:, None] * self._flats[1])

    @cached_property
    def open_flats(self) -> Tensor:
        """Return whether the equations leave a coefficient of each flat (N,) open."""
        own = (self.supports.directions.abs().sum(1) > 0).sum(-1)
        return (self._flats[0].abs().sum(1) > 0).sum(-1) < own

    def _explain(self, p: Tensor, kind: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what is left of ``p`` (N, C), ``a`` (N, R) and the labels (N, C)."""
        origin = self.supports.origin[kind]
        across, along = self._flats
        rest, U = (p - origin) * self.space.rows, self.space.U
        rest = rest - (rest @ U) @ U.T
        c = torch.einsum("nc,nck->nk", rest, across[kind])
        rest = rest - torch.einsum("nk,nck->nc", c, across[kind])
        label = origin + torch.einsum("nk,nck->nc", c, along[kind])
        return rest, self.space.left(p - label), label

    def point(self, beta: Tensor, kind: Tensor) -> SamplePoints:
        p = self._predicted(beta)
        _, a, label = self._explain(p, kind)
        return SamplePoints(a, beta @ self.basis.T + self.start, label, p)

    def values(self, beta: Tensor, kind: Tensor) -> Tensor:
        """Return the residuals (N, C), and one more where the scale is known."""
        p = self._predicted(beta)
        rest, a, _ = self._explain(p, kind)
        size = a.norm(dim=-1, keepdim=True).clamp_min(SHORTEST_VECTOR)
        if not self.space.scaled:
            return torch.div(rest, size)
        b = beta @ self.basis.T + self.start
        return torch.cat([rest / size, _product(a, b)[0]], 1)

    def jacobian(self, beta: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residuals (N, E) and their derivatives (N, E, K)."""
        p = self._predicted(beta)
        rest, a, _ = self._explain(p, kind)
        size = a.norm(dim=-1, keepdim=True).clamp_min(SHORTEST_VECTOR)
        across, along = self._flats[0][kind], self._moved_by_labels[kind]
        U, weighed = self.space.U, self._moved(p)
        told = U.T @ weighed
        left = weighed - U @ told
        dc = across.mT @ left
        left = left - across @ dc
        da = told - along @ dc
        shrink = (a[:, None, :] @ da) / size[..., None].square()
        values = rest / size
        J = left / size[..., None] - values[..., None] * shrink
        if not self.space.scaled:
            return values, J
        b = beta @ self.basis.T + self.start
        value, by_a, by_b = _product(a, b)
        row = by_a[:, None, :] @ da + (by_b @ self.basis)[:, None, :]
        return torch.cat([values, value], 1), torch.cat([J, row], 1)

    def label_slopes(self, beta: Tensor, kind: Tensor) -> Tensor:
        """Return the derivatives (N, C, K) of the labels by ``β``."""
        across, along = self._flats
        return along[kind] @ (across[kind].mT @ self._moved(self._predicted(beta)))

    def error_sizes(self, errors: Tensor, kind: Tensor) -> Tensor:
        """Return the size (N,) of residuals that errors (N, C) of ``p − y − δ`` leave."""
        explained = self._flats[0].square().sum(-1)[kind] + self.space.U.square().sum(-1)
        left = (1 - explained).where(explained < 1 - EXPLAINED_WHOLLY, 0.0).sqrt()
        return (errors * self.space.rows * left).square().sum(-1).sqrt()

    def label_gains(self, kind: Tensor) -> Tensor:
        """Return how far the labels (N,) move in L1 per unit of error of ``p − y − U a`` in L2."""
        _, along = self._flats
        return along[kind].abs().sum((-2, -1))


def beyond(space: HeadSpace, directions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what flats of labels with directions (N, C, K) hold beyond the span of ``U``.

    These are orthonormal directions (N, C, K) of what is left of the flats, times ``rows``; how
    much of each is left (N, K), the most first; and the labels' directions (N, C, K) that leave it.
    """
    T = space.rows[:, None] * directions
    lengths = T.norm(dim=1, keepdim=True).clamp_min(SHORTEST_VECTOR)
    T = T / lengths
    u, s, vh = torch.linalg.svd(T - space.U @ (space.U.T @ T), full_matrices=False)
    return u, s, (directions / lengths) @ vh.mT


def _product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``(a·b − 1) / (1 + ‖a‖‖b‖)`` (N, 1), and its derivatives by ``a`` and ``b`` (N, R)."""
    along, across = a.norm(dim=-1, keepdim=True), b.norm(dim=-1, keepdim=True)
    size = 1 + along * across
    value = ((a * b).sum(-1, keepdim=True) - 1) / size
    ratio_a = across / along.clamp_min(SHORTEST_VECTOR)
    ratio_b = along / across.clamp_min(SHORTEST_VECTOR)
    return value, (b - value * ratio_a * a) / size, (a - value * ratio_b * b) / size


ROUNDING_SUMMED = 2.0  # how many roundings a sum over the batch and over a feature has, as a factor
ROUNDING_LEAST = 1.0  # the smallest error of a number near one, in roundings of its own size


def as_sent(space: HeadSpace, at: SamplePoints) -> Tensor:
    """Return the sizes (N, C) of the differences as the client had rounded them."""
    return torch.minimum((at.p - at.label).abs(), (at.a @ space.spread.T).abs())


def entry_errors(space: HeadSpace, differences: Tensor, features: Tensor) -> Tensor:
    """Return the standard error ``n`` (C,) of the entries of each row of the head's gradient."""
    typical = features.square().mean(-1).sqrt()
    sizes = (differences.abs() * typical[:, None]).sum(0) / space.factor
    return ROUNDING_SUMMED * space.relative * sizes + space.absolute


def row_errors(space: HeadSpace) -> Tensor:
    """Return the same from the gradient alone, before any sample is known."""
    sizes = space.gradient.square().mean(1).sqrt()
    hidden = (space.rows * sizes).mean() / space.rows  # what cancels in a row
    return ROUNDING_SUMMED * space.relative * (sizes + hidden / 8) + space.absolute


def equation_errors(space: HeadSpace, n: Tensor, a: Tensor, b: Tensor, p: Tensor) -> Tensor:
    """Return the standard error (N, C) of ``p − y − U a`` for samples ``a``, ``b`` and ``p``."""
    of_differences = n * (a / space.S).norm(dim=-1, keepdim=True)
    lengths = space.weight_lengths
    back = (n * space.rows * (b @ space.U.T)).norm(dim=-1, keepdim=True)
    sizes = space.factor * (b * space.S).norm(dim=-1, keepdim=True)
    typical = sizes * lengths / space.weights.shape[1] ** 0.5
    of_logits = space.factor * lengths * back + ROUNDING_SUMMED * space.relative * typical
    logs = p.clamp_min(torch.finfo(p.dtype).tiny).log().abs()
    own = ROUNDING_LEAST * space.relative * (1 + logs)
    shared = (p * of_logits).norm(dim=-1, keepdim=True)
    of_p = p * (of_logits.square() + shared.square() + own.square()).sqrt()
    # A label's own entries are rounded as well, to within those of the difference.
    labels = (p - a @ space.spread.T).abs()
    of_labels = ROUNDING_LEAST * space.relative * labels
    return torch.sqrt(of_differences.square() + of_p.square() + of_labels.square())


POLISH = Levenberg(iterations=12, damping=1e-6, checkpoints=())
THOROUGH = Levenberg(iterations=100, damping=1e-6, checkpoints=())
REWEIGHTED = 3  # how often equations are weighed anew
NO_KIND = torch.zeros(1, dtype=torch.long)  # of the one problem that a joint system is
FAR_OFF = 1e4  # beyond this many standard errors, weighing anew does not help


@dataclass(frozen=True, eq=False)
class JointSystem:
    """The system of all samples, each on its own flat of labels."""

    space: HeadSpace  # the factors of the head's gradient
    supports: Supports  # the flat of each sample, in their order
    errors: Tensor  # (R, C) the standard error of every equation

    def unpack(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``b`` (R, R), the coefficients (R, K) and ``a·b`` of unknowns (U,)."""
        R, K = self.space.rank, self.supports.unknowns
        scale = x.new_ones(()) if self.space.scaled else x[-1].exp()
        return x[: R * R].reshape(R, R), x[R * R : R * (R + K)].reshape(R, K), scale

    def point(self, x: Tensor) -> SamplePoints:
        b, c, scale = self.unpack(x)
        a = scale * torch.linalg.inv_ex(b)[0].mT
        p = self.space.predicted(b)
        label = self.supports.origin + (self.supports.directions @ c[..., None])[..., 0]
        return SamplePoints(a, b, label, p)

    def misfit(self, x: Tensor) -> float:
        """Return the root mean square of the residuals at unknowns (U,), in standard errors."""
        return float(self._residuals(self.point(x)).square().mean().sqrt())

    def signal(self, x: Tensor) -> float:
        """Return the root mean square of the differences ``δ``, in standard errors.

        Where the scale is an unknown, a scale of zero with endless features fits any gradient: all
        differences vanish, and the errors of the logits grow with the features. A known scale
        leaves no such way out. Where rows are levelled, a weak sample with the feature of another
        fits as well, with errors beyond its own size: there the least sample counts.
        """
        if self.space.scaled and not self.space.is_levelled:
            return math.inf
        told = (self.point(x).a @ self.space.spread.T / self.errors).square()
        told = told.mean(-1).amin() if self.space.is_levelled else told.mean()
        return float(told.sqrt())

    def values(self, x: Tensor, kind: Tensor) -> Tensor:
        """Return the weighed residuals (1, E) of unknowns (1, U)."""
        return self._residuals(self.point(x[0]))[None]

    def _residuals(self, at: SamplePoints) -> Tensor:
        rest = ((at.p - at.label - at.a @ self.space.spread.T) / self.errors).flatten()
        if self.space.constraint is None:
            return rest
        told = (at.b @ self.space.constraint - 1) / self._constraint_errors(at.b)
        return torch.cat([rest, told])

    def _constraint_errors(self, b: Tensor) -> Tensor:
        """Return the standard error (R,) of the further feature, which is one."""
        return torch.mul(1 + b.norm(dim=-1) * self.space.S[0], self.space.relative)

    def jacobian(self, x: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residuals (1, E) and their derivatives (1, E, U)."""
        at, R, C = self.point(x[0]), self.space.rank, self.space.classes
        M, U = self.space.logit_map, self.space.spread
        K = self.supports.unknowns
        # dA = −A dBᵀ A / scale: the a of one sample moves with the b of every other.
        Ua = (at.a @ U.T).mT / self.unpack(x[0])[2]  # (C, R): column j is what moves with b_j
        J = Ua[None, :, :, None] * at.a[:, None, None, :]
        own = at.p[..., None] * (M - (at.p @ M)[:, None, :])
        i = torch.arange(R, device=x.device)
        J[i, :, i, :] += own
        blocks = [J.reshape(R * C, R * R)]
        labels = x.new_zeros(R, C, R, K)
        labels[i, :, i, :] = -self.supports.directions
        blocks.append(labels.reshape(R * C, R * K))
        if not self.space.scaled:
            blocks.append(-(at.a @ U.T).reshape(R * C, 1))
        J = torch.cat(blocks, 1) / self.errors.reshape(-1, 1)
        constraint = self.space.constraint
        if constraint is not None:
            rows = x.new_zeros(R, J.shape[1])
            view = rows[:, : R * R].reshape(R, R, R)
            view[i, i] = constraint / self._constraint_errors(at.b)[:, None]
            rows[:, : R * R] = view.reshape(R, R * R)
            J = torch.cat([J, rows])
        return self._residuals(at)[None], J[None]


def polish(
    space: HeadSpace, supports: Supports, found: SamplePoints, solver: Levenberg = POLISH
) -> tuple[JointSystem, Tensor]:
    """Solve for all samples together from where each was found; return the system and its point."""
    T, label = supports.directions, found.p - found.a @ space.spread.T
    c = torch.linalg.pinv(T) @ (label - supports.origin)[..., None]
    parts = [found.b.flatten(), c.flatten()]
    if not space.scaled:
        parts.append((found.a * found.b).sum(-1).mean().clamp_min(1e-12).log()[None])
    x = torch.cat(parts)[None]
    system = JointSystem(space, supports, torch.ones_like(found.p))
    at = system.point(x[0])
    for _ in range(REWEIGHTED):
        n = entry_errors(space, as_sent(space, at), space.divided(at.b))
        errors = equation_errors(space, n, at.a, at.b, at.p)
        system = replace(system, errors=errors)
        x, cost, _ = solver.minimise(system, x, NO_KIND)
        at = system.point(x[0])
        if float(cost[0]) > at.p.numel() * FAR_OFF**2:
            break
    return system, x[0]
