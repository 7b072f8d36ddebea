"""How many equations a family imposes: only more of them than unknowns can prove a label."""

from __future__ import annotations

import torch
from torch import Tensor

from softleak.labels.families import Family

STEP, BESIDE = 1e-8, 1e-4
MOST = 32  # entries looked at: with so many classes there are always enough equations


def count_equations(family: Family, y: Tensor) -> Tensor:
    """(K,) the rank of what ``project`` takes away around labels (K, C), less what is automatic.

    For a projection that is its trace. Entries sum to one whatever the scalar (Theorem 1), so at
    most C − 1 equations are new; with more than 32 classes those of the first 32 are counted.
    """
    classes = y.shape[-1]
    # Beside the label, where no two entries are equal and it is plain which are free.
    beside = family.project(y) + BESIDE * torch.linspace(1, 2, classes).to(y)
    moves = STEP * torch.eye(classes, dtype=y.dtype, device=y.device)[:MOST]
    moved = family.project(beside[:, None] + moves) - family.project(beside)[:, None]
    kept = moved.diagonal(dim1=-2, dim2=-1) / STEP
    return (1 - kept).sum(-1).round().clamp(max=classes - 1)
