"""Factor the head's gradient of a batch: ``G = U S Vᵀ``, one column per sample.

The gradient of a batch is ``G = (1/B) Σ δ_i x_iᵀ``. For some invertible matrix ``A`` with columns
``a_i``, and the columns ``b_i`` of ``A⁻ᵀ``,

    δ_i = U a_i        x_i = B V S b_i        a_i·b_j = [i = j]

so that every sample is described by ``b_i``, as many numbers as there are samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from softleak.core.factors import OWN, RANK, SMALLEST_NORMAL, head_gradients
from softleak.core.head import Head
from softleak.core.share import GradientShare

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
        """Factor a gradient (m, n) in float64.

        Its entries are rounded by ``relative`` of their size, and ``noise`` is the standard
        deviation of whatever else is on each.
        """
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
        least = RANK.second_value * max(relative, OWN) * largest
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

    @property
    def rank(self) -> int:
        """Return R, the number of samples that can be told apart."""
        return len(self.S)

    @property
    def classes(self) -> int:
        """Return C, the number of classes."""
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
        U, S, Vh = torch.linalg.svd(gradient, full_matrices=False)
        relative = max(share.resolution(head.weight_name, head.dtype), OWN)
        usual = float(columns.square().mean().sqrt())
        absolute, smallest = (
            size * usual for size in (absolute, share.smallest(head.weight_name, head.dtype))
        )
        edge = 2 * sum(side**0.5 for side in gradient.shape) * absolute
        rank = int((RANK.second_value * relative * S[0] + edge < S).sum())
        space = (U[:, :rank], S[:rank], Vh[:rank].T, weights, columns, torch.ones_like(offset))
        return cls(*space, offset, with_bias, float(rank), gradient, relative, absolute, smallest)
