"""This module holds the small system that every sample of a batch solves on its own (§9).

With ``M`` the map from ``b`` to logits, a sample solves

    softmax(M b + offset) − U a  ∈  a flat of labels        a·b = 1

Given ``b``, the rest is linear: ``a`` and the coefficients of the label are projected out, and only
``b`` is searched. Residuals are divided by ``‖a‖``, since a saturated softmax invents solutions at
``a = 0`` otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from softleak.batches.head_space import SHORTEST_VECTOR, HeadSpace
from softleak.batches.supports import Supports

EXPLAINED_WHOLLY = 1e-12  # an entry of which so little is left has no residual


@dataclass(frozen=True, eq=False)
class SamplePoints:
    """These are points of the system: ``a`` and ``b`` (N, R), labels and probabilities (N, C)."""

    a: Tensor
    b: Tensor
    label: Tensor
    p: Tensor


@dataclass(frozen=True, eq=False)
class SampleSystem:
    """This is the system of one sample, with ``b`` in the flat ``start + basis β``.

    Attributes:
        space: the factors of the head's gradient.
        supports: the flats of labels.
        basis: (R, K) the directions that ``b`` is searched in.
        start: (R,) a point of the flat.
        scaled: whether the scale is known, so that ``a·b = 1`` is an equation.
    """

    space: HeadSpace
    supports: Supports
    basis: Tensor
    start: Tensor
    scaled: bool = True

    @cached_property
    def _map(self) -> Tensor:
        return self.space.logit_map @ self.basis

    @cached_property
    def _offset(self) -> Tensor:
        return self.space.offset + self.space.logit_map @ self.start

    @property
    def logits(self) -> tuple[Tensor, Tensor]:
        """Return the map (C, K) from ``β`` to logits, and the logits (C,) at ``β = 0``."""
        return self._map, self._offset

    @cached_property
    def _flats(self) -> tuple[Tensor, Tensor]:
        """Return orthonormal directions (N, C, K) of what remains of each flat, and their labels.

        The second tensor (N, C, K) holds the labels' directions that leave them.
        """
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
        """Return whether the equations leave a coefficient of each flat (N,) open.

        Then the label is known up to a direction, and so is the length of ``a``.
        """
        own = (self.supports.directions.abs().sum(1) > 0).sum(-1)
        return (self._flats[0].abs().sum(1) > 0).sum(-1) < own

    def _without(self, x: Tensor) -> Tensor:
        return x - (x @ self.space.U) @ self.space.U.T

    def _explain(self, p: Tensor, kind: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what is left of ``p`` (N, C), ``a`` (N, R) and the labels (N, C)."""
        origin = self.supports.origin[kind]
        across, along = self._flats
        rest = self._without((p - origin) * self.space.rows)
        c = torch.einsum("nc,nck->nk", rest, across[kind])
        rest = rest - torch.einsum("nk,nck->nc", c, across[kind])
        label = origin + torch.einsum("nk,nck->nc", c, along[kind])
        return rest, self.space.left(p - label), label

    def point(self, beta: Tensor, kind: Tensor) -> SamplePoints:
        """Return the samples that points ``β`` (N, K) of these flats (N,) stand for."""
        p = torch.softmax(beta @ self._map.T + self._offset, -1)
        _, a, label = self._explain(p, kind)
        return SamplePoints(a, beta @ self.basis.T + self.start, label, p)

    def values(self, beta: Tensor, kind: Tensor) -> Tensor:
        """Return the residuals (N, C), and one more where the scale is known."""
        p = torch.softmax(beta @ self._map.T + self._offset, -1)
        rest, a, _ = self._explain(p, kind)
        size = a.norm(dim=-1, keepdim=True).clamp_min(SHORTEST_VECTOR)
        if not self.scaled:
            return torch.div(rest, size)
        b = beta @ self.basis.T + self.start
        return torch.cat([rest / size, _product(a, b)[0]], 1)

    def jacobian(self, beta: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residuals (N, E) and their derivatives (N, E, K)."""
        p = torch.softmax(beta @ self._map.T + self._offset, -1)
        rest, a, _ = self._explain(p, kind)
        size = a.norm(dim=-1, keepdim=True).clamp_min(SHORTEST_VECTOR)
        across, along = self._flats[0][kind], self._moved_by_labels[kind]
        dp = p[..., None] * (self._map - (p @ self._map)[:, None, :])
        U = self.space.U
        weighed = self.space.rows[:, None] * dp
        told = U.T @ weighed
        left = weighed - U @ told
        dc = across.mT @ left
        left = left - across @ dc
        da = told - along @ dc
        shrink = (a[:, None, :] @ da) / size[..., None].square()
        values = rest / size
        J = left / size[..., None] - values[..., None] * shrink
        if not self.scaled:
            return values, J
        b = beta @ self.basis.T + self.start
        value, by_a, by_b = _product(a, b)
        row = by_a[:, None, :] @ da + (by_b @ self.basis)[:, None, :]
        return torch.cat([values, value], 1), torch.cat([J, row], 1)

    def label_slopes(self, beta: Tensor, kind: Tensor) -> Tensor:
        """Return the derivatives (N, C, K) of the labels by ``β``."""
        p = torch.softmax(beta @ self._map.T + self._offset, -1)
        across, along = self._flats
        dp = p[..., None] * (self._map - (p @ self._map)[:, None, :])
        return along[kind] @ (across[kind].mT @ (self.space.rows[:, None] * dp))

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

    Returns:
        Orthonormal directions (N, C, K) of what is left of the flats, times ``rows``; how much of
        each is left (N, K), the most first; and the labels' directions (N, C, K) that leave it.
    """
    T = space.rows[:, None] * directions
    lengths = T.norm(dim=1, keepdim=True).clamp_min(SHORTEST_VECTOR)
    T = T / lengths
    u, s, vh = torch.linalg.svd(T - space.U @ (space.U.T @ T), full_matrices=False)
    return u, s, (directions / lengths) @ vh.mT


def _product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``(a·b − 1) / (1 + ‖a‖‖b‖)`` (N, 1), and its derivatives by ``a`` and ``b`` (N, R).

    Errors of ``a`` and ``b`` enter the product in proportion to their lengths.
    """
    along, across = a.norm(dim=-1, keepdim=True), b.norm(dim=-1, keepdim=True)
    size = 1 + along * across
    value = ((a * b).sum(-1, keepdim=True) - 1) / size
    ratio_a = across / along.clamp_min(SHORTEST_VECTOR)
    ratio_b = along / across.clamp_min(SHORTEST_VECTOR)
    return value, (b - value * ratio_a * a) / size, (a - value * ratio_b * b) / size
