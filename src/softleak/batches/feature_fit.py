"""This module fits features, their scales and ``δ'`` of every sample, where zeros are known."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.batches.gradient_space import GradientSpace
from softleak.factors import SMALLEST_NORMAL
from softleak.head import Head
from softleak.share import GradientShare
from softleak.subject import Subject

NEAR_ZERO = 32.0  # a feature within so many of its standard errors may be zero or not
MOST_SWITCHED = 8  # units whose state the bias may decide; more would be no coincidence


@dataclass(frozen=True, eq=False)
class FeatureFit:
    """This holds features (B, I), ``δ'`` (B, C), and how well their scales explain a bias.

    Attributes:
        features: the features.
        delta: each sample's part of the mean of ``p − y``.
        behind: the gradient (B, I) before the ReLU, sample by sample.
        scales: the inverse scales (B,), which have to be positive.
        misfit: what is left of the bias's gradient, in standard errors.
    """

    features: Tensor
    delta: Tensor
    behind: Tensor
    scales: Tensor
    misfit: float


@dataclass(frozen=True, eq=False)
class FeatureProblem:
    """This holds the equations: the head's gradient ``R Vᵀ`` (I, C), zeros and a bias's gradient.

    Attributes:
        head: the model's head.
        space: the space of the transposed gradient of the head.
        zeros: where each sample's feature is zero, (B, I).
        before: the name of the layer before.
        bias: the gradient (I,) of its bias.
        relative: the rounding of the bias's terms.
        noise: whatever else is on each entry of it.
    """

    head: Head
    space: GradientSpace
    zeros: Tensor
    before: str
    bias: Tensor
    relative: float
    noise: float

    @classmethod
    def of(
        cls,
        subject: Subject,
        share: GradientShare,
        space: GradientSpace,
        zeros: Tensor,
        before: str,
    ) -> FeatureProblem:
        """Gather the equations of a share."""
        name = f"{before}.bias"
        relative = share.resolution(name, subject.head.dtype)
        bias = share[name].double()
        return cls(subject.head, space, zeros, before, bias, relative, share.noise(name))

    def moved(self, generator: torch.Generator) -> FeatureProblem:
        """Return the equations with every gradient moved by its own error, at random."""
        R, errors = self.space.R, self.space.errors
        moves = torch.randn(R.shape, generator=generator, dtype=torch.double).to(R)
        space = replace(self.space, R=R + errors[:, None] * moves)
        shift = torch.randn(self.bias.shape, generator=generator, dtype=torch.double).to(R)
        size = self.relative * (self.bias.abs() + self.bias.square().mean().sqrt()) + self.noise
        return replace(self, space=space, bias=self.bias + size * shift)

    def solve(self) -> FeatureFit:
        """Return the features that vanish at the zeros, and the scales that explain the bias."""
        R, errors = self.space.R, self.space.errors
        unit = torch.stack([self._feature(zeros) for zeros in self.zeros])
        unit = unit * torch.where(unit.sum(1) < 0, -1.0, 1.0)[:, None]
        solved = torch.linalg.lstsq((unit / errors).T, R / errors[:, None]).solution
        delta = solved @ self.space.V.T  # (B, C), each at the inverse scale of its feature
        back = self.head.back(delta)
        behind = torch.where(self.zeros, 0.0, back)
        weights = 1 / self._bias_errors(unit, behind)
        scales, left = self._scales(behind, weights)
        # A feature within its error of zero may have been on: its part of the bias tells.
        behind = _switched(behind, back, left / weights, scales, self.near_zero(unit))
        scales, left = self._scales(behind, weights)
        misfit = left.square().sum().div(max(len(left) - len(unit), 1)).sqrt()
        features = unit / torch.where(scales == 0, SMALLEST_NORMAL, scales)
        return FeatureFit(features, delta * scales, behind * scales, scales[:, 0], float(misfit))

    def near_zero(self, unit: Tensor) -> Tensor:
        """Return which features (B, I) are zero within their errors."""
        return unit.abs() <= NEAR_ZERO * self.space.errors

    def _scales(self, behind: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inverse scales (B, 1), and what they leave of the bias, in errors (I,)."""
        kept = weights
        for _ in range(3):  # units in the wrong state are outliers, and left out of the next fit
            solved = torch.linalg.lstsq((behind * kept).T, (self.bias * kept)[:, None]).solution
            left = (solved[:, 0] @ behind - self.bias) * weights
            kept = weights * (left.abs() <= 8 * left.abs().median().clamp_min(1))
        return solved, left

    def _feature(self, zeros: Tensor) -> Tensor:
        """Return the vector (I,) of the space that vanishes at these entries, up to its scale."""
        rows = self.space.R[zeros] / self.space.errors[zeros, None]
        vector = torch.linalg.eigh(rows.T @ rows)[1][:, 0]
        return torch.where(zeros, 0.0, self.space.R @ vector)

    def _bias_errors(self, unit: Tensor, behind: Tensor) -> Tensor:
        """Return the standard errors (I,) of the bias's equations, up to scales of about one."""
        spread = torch.linalg.pinv((unit / self.space.errors).T).norm(dim=1)
        rows = self.head.W.double().norm(dim=0)
        # First scales, without weights, say how large each sample's terms are.
        scales = torch.linalg.lstsq(behind.T, self.bias[:, None]).solution.abs()
        carried = ((spread[:, None] * scales * rows) * ~self.zeros).norm(dim=0)
        terms = (behind.abs() * scales).sum(0) + self.bias.square().mean().sqrt()
        errors = carried.hypot(self.relative * terms) + self.noise
        return torch.clamp_min(errors, SMALLEST_NORMAL)


def _switched(behind: Tensor, back: Tensor, left: Tensor, scales: Tensor, near: Tensor) -> Tensor:
    """Return ``behind`` (B, I) with those few units switched that explain what is left (I,).

    Only a feature that is zero within its error (``near``) can be switched.
    """
    worst = left.abs().topk(min(MOST_SWITCHED, len(left))).indices
    out = behind.clone()
    for j in worst:
        change = torch.where(behind[:, j] == 0, back[:, j], -behind[:, j]) * scales[:, 0]
        after = torch.where(near[:, j], (left[j] + change).abs(), torch.inf)
        i = int(after.argmin())
        if float(after[i]) < 0.01 * float(left[j].abs()):
            out[i, j] = back[i, j] if behind[i, j] == 0 else 0.0
    return out
