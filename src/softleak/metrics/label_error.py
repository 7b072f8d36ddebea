"""This module scores a recovered label against the true one, in L1 (the paper's ``L_r``)."""

from __future__ import annotations

import torch
from torch import Tensor

from softleak.results import Recovery

PARABOLA_POINTS = 257  # of the path through the ends and the middle of an interval
LEAST_STEP_SQUARED = 1e-300  # keeps a step of no length from dividing by zero


def label_error(recovery: Recovery, y_true: Tensor) -> float:
    """Return ``‖y − y_true‖₁``, or infinity if no label was recovered.

    Args:
        recovery: the answer of an attack.
        y_true: the true label (C,).
    """
    if recovery.label is None:
        return float("inf")
    return float((recovery.label - y_true.to(recovery.label)).abs().sum())


def distance_to_set(recovery: Recovery, y_true: Tensor) -> float:
    """Return the L1 distance of the true label from the nearest label that fits.

    Args:
        recovery: the answer of an attack, with every label that fits.
        y_true: the true label (C,).

    Returns:
        The distance; infinity if no label fits.
    """
    distances = [_to_path(c.labels, y_true.to(c.labels)) for c in recovery.solutions]
    return min(distances, default=float("inf"))


def _to_path(labels: Tensor, y: Tensor) -> float:
    """Return the L1 distance of ``y`` (C,) from the path through ``labels`` (S, C)."""
    if len(labels) == 1:
        return float((labels[0] - y).abs().sum())
    path = _bent(labels) if len(labels) == 3 else labels
    start, way = path[:-1], path.diff(dim=0)
    along = ((y - start) * way).sum(-1) / way.square().sum(-1).clamp_min(LEAST_STEP_SQUARED)
    nearest = start + along.clamp(0, 1)[:, None] * way
    return float((nearest - y).abs().sum(-1).min())


def _bent(labels: Tensor) -> Tensor:
    """Return points on the parabola through three labels: ends and middle of an interval."""
    s = torch.linspace(0, 2, PARABOLA_POINTS, dtype=labels.dtype, device=labels.device)[:, None]
    first, middle, last = labels
    path: Tensor = first * (s - 1) * (s - 2) / 2 - middle * s * (s - 2) + last * s * (s - 1) / 2
    return path
