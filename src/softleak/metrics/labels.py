"""Scores of a recovered label against the true one, in L1 (the paper's ``L_r``)."""

from __future__ import annotations

import torch
from torch import Tensor

from softleak.results import Recovery

FINE = 257
TINY = 1e-300


def label_error(recovery: Recovery, y_true: Tensor) -> float:
    """``‖y − y_true‖₁``; infinite if no label was recovered."""
    if recovery.label is None:
        return float("inf")
    return float((recovery.label - y_true.to(recovery.label)).abs().sum())


def distance_to_set(recovery: Recovery, y_true: Tensor) -> float:
    """The L1 distance of the true label from the set of labels that fit; infinite if none does."""
    distances = [_to_path(c.labels, y_true.to(c.labels)) for c in recovery.solutions]
    return min(distances, default=float("inf"))


def _to_path(labels: Tensor, y: Tensor) -> float:
    """The L1 distance of ``y`` (C,) from the path through ``labels`` (S, C)."""
    if len(labels) == 1:
        return float((labels[0] - y).abs().sum())
    path = _bent(labels) if len(labels) == 3 else labels
    start, way = path[:-1], path.diff(dim=0)
    along = ((y - start) * way).sum(-1) / way.square().sum(-1).clamp_min(TINY)
    nearest = start + along.clamp(0, 1)[:, None] * way
    return float((nearest - y).abs().sum(-1).min())


def _bent(labels: Tensor) -> Tensor:
    """The parabola through three labels, finely cut: the ends and middle of a narrow interval."""
    s = torch.linspace(0, 2, FINE, dtype=labels.dtype, device=labels.device)[:, None]
    first, middle, last = labels
    path: Tensor = first * (s - 1) * (s - 2) / 2 - middle * s * (s - 2) + last * s * (s - 1) / 2
    return path
