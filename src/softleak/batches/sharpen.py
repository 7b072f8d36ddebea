"""This module makes a vector that is nearly sparse exactly so."""

from __future__ import annotations

import torch
from torch import Tensor

from softleak.batches.direction_settings import DirectionSettings
from softleak.batches.sparse_climb import unit_rows


def fit_smallest(points: Tensor, a: Tensor, settings: DirectionSettings) -> Tensor:
    """Return the vectors (S, B), each fitted to the smallest part of its own entries alone."""
    out = []
    count = min(max(int(settings.sharpen_part * len(points)), points.shape[1]), len(points))
    for vector in a:
        for _ in range(settings.smallest_steps):
            rows = points[(points @ vector).abs().topk(count, largest=False).indices]
            vector = torch.linalg.eigh(rows.T @ rows)[1][:, 0]
        out.append(vector)
    return torch.stack(out) if out else a


def sharpen(points: Tensor, a: Tensor, settings: DirectionSettings) -> Tensor:
    """Return the vectors (S, B), each fitted to its own smallest entries.

    At first it is the vector of least ``Σ_j |R_j · a|`` with the same component along the start,
    by reweighted least squares. Where half of the entries vanish this is the sparse vector itself.
    """
    if not len(a):
        return a
    start, p = a, (a @ points.T).abs()
    size = p.quantile(settings.sharpen_part, dim=1, keepdim=True)
    eye = 1e-14 * torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
    for step in range(settings.l1_steps + settings.log_steps):
        weights = 1 / (p.square() + size.square()).sqrt()
        if step >= settings.l1_steps:
            weights, start = weights.square(), a
        weights = weights / weights.sum(1, keepdim=True)
        grams = torch.stack([(points * w[:, None]).T @ points for w in weights])
        a = unit_rows(torch.linalg.solve(grams + eye, start))
        p = (a @ points.T).abs()
        rate = settings.l1_rate if step < settings.l1_steps else settings.log_rate
        size = (size * rate).clamp_min(1e-9)
    return a


def draw(
    points: Tensor,
    a: Tensor,
    known: Tensor,
    settings: DirectionSettings,
    generator: torch.Generator,
) -> Tensor:
    """Return, for each vector (S, B), the best null vector of random sets of small entries.

    Vectors that are known (K, B) do not count.
    """
    B, known = points.shape[1], unit_rows(known)
    count = min(max(int(settings.pool * B), B + settings.margin), len(points))
    out = []
    for vector in a:
        for _ in range(settings.draw_steps):
            pool = (points @ vector).abs().topk(count, largest=False).indices
            keys = torch.rand(settings.draws, count, generator=generator).to(points)
            chosen = pool[keys.argsort(1)[:, : B - 1]]
            rows = torch.cat([points[chosen], vector.expand(len(keys), 1, B)], 1)
            target = torch.zeros_like(rows[:, :, :1])
            target[:, -1] = 1
            null, failed = torch.linalg.solve_ex(rows, target)
            null = unit_rows(null[..., 0][failed == 0].nan_to_num(0, 0, 0))
            judged = (null @ points.T).abs().quantile(settings.judged_part, dim=1)
            judged = torch.where(null.norm(dim=1) > 0.5, judged, torch.inf)
            old = ((null @ known.T).abs() >= settings.same).any(1)
            judged = torch.where(old, torch.inf, judged)
            vector = null[judged.argmin()]
        out.append(vector)
    return torch.stack(out) if out else a
