"""Scores of a recovered label against the true one, in L1 (the paper's ``L_r``)."""

from __future__ import annotations

import torch
from torch import Tensor

from softleak.results import Recovery


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
    """The L1 distance of ``y`` (C,) from the path through ``labels`` (S, C), finely cut."""
    steps = torch.linspace(0, 1, 65, dtype=labels.dtype, device=labels.device)[:, None, None]
    path = torch.lerp(labels[:-1], labels[1:], steps) if len(labels) > 1 else labels[None]
    return float((path - y).abs().sum(-1).min())
