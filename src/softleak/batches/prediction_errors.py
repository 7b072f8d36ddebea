"""This module tells how exactly features and predictions follow from recovered inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from softleak.batches.client_runs import exact_copy, own_copy
from softleak.batches.sparse_layer import run_through
from softleak.subject import Subject


def predicted(
    subject: Subject, x: Tensor, error: float, runs: int, seed: int
) -> tuple[Tensor, Tensor, float]:
    """Return the features (B, I), the error (B,) of ``p`` in L1 and that of features, relative.

    The errors are those of runs in the client's precision with inputs moved by their own error.
    """
    generator = torch.Generator().manual_seed(seed)
    features, p = _seen(subject.once(exact_copy), subject.head.name, x)
    p_errors, feature_errors = [], []
    for _ in range(runs):
        moves = torch.randn(x.shape, generator=generator, dtype=torch.double).to(x)
        moved = _seen(subject.once(own_copy), subject.head.name, x + error * moves)
        p_errors.append((moved[1] - p).abs().sum(1))
        feature_errors.append((moved[0] - features).norm() / features.norm())
    return features, torch.stack(p_errors).amax(0), float(torch.stack(feature_errors).max())


def _seen(model: nn.Module, head: str, x: Tensor) -> tuple[Tensor, Tensor]:
    run = run_through(model, head, x)
    return run.entered.detach().double(), run.logits.detach().double().softmax(1)
