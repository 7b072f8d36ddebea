"""This module checks recovered features against the gradient of the weight before the head."""

from __future__ import annotations

import torch
from torch import Tensor

from softleak.batches.feature_fit import FeatureFit, FeatureProblem
from softleak.share import GradientShare
from softleak.subject import Subject


def misfit_before(
    subject: Subject, share: GradientShare, problem: FeatureProblem, fit: FeatureFit, seed: int
) -> float:
    """Return what ``Σ_i behind_i z_iᵀ`` leaves of the weight's gradient before the head.

    The inputs ``z_i`` of that layer are fitted; the unit is rounding. It is zero if the share does
    not hold the gradient.
    """
    name = f"{problem.before}.weight"
    if name not in share:
        return 0.0
    G = share[name].double()
    z = torch.linalg.lstsq(fit.behind.T, G).solution
    left = (G - fit.behind.T @ z).square().mean().sqrt()
    relative = share.resolution(name, subject.parameters[name].dtype)
    terms = (fit.behind.T.abs() @ z.abs()).square().mean().sqrt()
    carried = _carried(problem, fit, seed) * z.square().sum(0).mean().sqrt()
    unit = (relative * terms).hypot(carried) + share.noise(name)
    return float(left / unit)


def _carried(problem: FeatureProblem, fit: FeatureFit, seed: int) -> Tensor:
    """Return the root mean square error of an entry of ``behind``."""
    generator = torch.Generator().manual_seed(seed)
    moved = problem.moved(generator).solve()
    return (moved.behind - fit.behind).square().mean().sqrt()
