"""This module climbs from random starts towards the sparse vectors of a space.

Hyperplanes know nothing of the points' lengths: these are divided out, and the cloud is made round
(Tyler's estimate of scatter). Then ``a ← Σ_j soft(R_j · a) R_j``, normalised, leads to a sparse
vector from almost any start.
"""

from __future__ import annotations

import torch
from torch import Tensor

from softleak.batches.direction_settings import DirectionSettings
from softleak.factors import SMALLEST_NORMAL


def rounded_cloud(R: Tensor, settings: DirectionSettings) -> tuple[Tensor, Tensor]:
    """Return unit rows (m, B) of isotropic scatter, and ``T`` with rows along ``R T``."""
    T = torch.eye(R.shape[1], dtype=R.dtype, device=R.device)
    if len(R) <= R.shape[1]:
        return R, T
    for _ in range(settings.scatter_steps):
        points = unit_rows(R @ T)
        scatter = points.T @ points * (R.shape[1] / len(R))
        values, vectors = torch.linalg.eigh(scatter)
        T = T @ (vectors * values.clamp_min(SMALLEST_NORMAL).rsqrt()) @ vectors.T
    return unit_rows(R @ T), T


def climb(
    points: Tensor,
    known: Tensor,
    odd: bool,
    settings: DirectionSettings,
    generator: torch.Generator,
) -> Tensor:
    """Return unit vectors (S, B) near sparse ones, most of them not near those that are known."""
    B = points.shape[1]
    count = max(settings.starts, settings.starts_per_missing * (B - len(known)))
    basis = torch.linalg.qr(known.T)[0]
    a = starts(known, min(count, settings.most_starts), settings, generator)
    a = a if odd else a - (a @ basis) @ basis.T
    plan = list(zip(settings.thresholds, settings.climb_steps, strict=True))[odd:]
    step = 0
    for threshold, steps in plan:
        for _ in range(steps):
            if step < settings.away_steps and not odd:
                a = a - (a @ basis) @ basis.T
            p = (unit_rows(a) @ points.T) * B**0.5
            a = (p - p.clamp(-threshold, threshold)) @ points
            step += 1
    return unit_rows(a)


def starts(
    known: Tensor, count: int, settings: DirectionSettings, generator: torch.Generator
) -> Tensor:
    """Return vectors (S, B) about orthogonal to those that are known (K, B), at random."""
    drawn = torch.randn(2, count, known.shape[1], generator=generator).to(known)
    basis = torch.linalg.qr(known.T)[0]
    away = unit_rows(drawn[0] - (drawn[0] @ basis) @ basis.T)
    return unit_rows(away + settings.spread * unit_rows(drawn[1]))


def distinct(a: Tensor, known: Tensor, settings: DirectionSettings) -> Tensor:
    """Return those of the vectors (S, B) that are neither known nor alike."""
    known = unit_rows(known)
    a = a[((a @ known.T).abs() < settings.same).all(1)]
    return a[first_of_its_kind(a, settings.same)]


def first_of_its_kind(a: Tensor, same: float) -> Tensor:
    """Return for each unit vector (S, B) whether none before it is the same up to its sign."""
    alike = (a @ a.T).abs() >= same
    return ~alike.tril(-1).any(1)


def unit_rows(a: Tensor) -> Tensor:
    """Return the rows (S, B), each of length one."""
    return torch.div(a, a.norm(dim=1, keepdim=True).clamp_min(SMALLEST_NORMAL))
