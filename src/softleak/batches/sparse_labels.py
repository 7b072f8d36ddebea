"""This module reads the labels of samples whose inputs and gradients at a layer are known.

With ``J = ∂z/∂a`` (C, m), the slopes of the logits at the layer's output, ``D_i = J_iᵀ δ_i``: m
equations for the C − 1 unknowns of each sample's ``δ_i``, and no other sample enters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from softleak.batches.sparse_layer import Passed, run_through
from softleak.factors import SMALLEST_NORMAL

SLOPES_AT_ONCE = 1 << 25  # entries of J held at once, in float64


@dataclass(frozen=True)
class KinkSettings:
    """These say how units near a kink are treated.

    Attributes:
        runs: how often the inputs are moved by a rounding, if units within rounding of a ReLU's
            kink may have switched at the client.
        growth: the factor by which these movements grow from one to the next.
        misfit: a sample's fit is tried again from this root mean square on, in standard errors.
        seed: the seed of the movements.
    """

    runs: int = 16
    growth: float = 1.25
    misfit: float = 8.0
    seed: int = 0


KINKS = KinkSettings()


@dataclass(frozen=True, eq=False)
class Differences:
    """This holds, for each of N samples, ``p`` (N, C), ``δ'`` (N, C) and how well it fits.

    Attributes:
        p: the predictions.
        delta: the sample's part of the mean of ``p − y``.
        errors: the standard error (N, C) of ``delta``.
        misfit: the root mean square (N,) of what the fit leaves of ``D``, in standard errors.
    """

    p: Tensor
    delta: Tensor
    errors: Tensor
    misfit: Tensor

    def better(self, other: Differences) -> Differences:
        """Return, sample by sample, the one of the two that fits better."""
        mine = (self.misfit <= other.misfit)[:, None]
        return Differences(
            torch.where(mine, self.p, other.p),
            torch.where(mine, self.delta, other.delta),
            torch.where(mine, self.errors, other.errors),
            self.misfit.minimum(other.misfit),
        )


def differences(
    model: nn.Module, layer: str, x: Tensor, D: Tensor, errors: Tensor, rounding: float
) -> Differences:
    """Return what the gradients at a layer's output say of each sample's ``p − y``.

    Args:
        model: the model in float64.
        layer: the layer's name.
        x: the inputs (N, …).
        D: the gradients (N, m) at the layer's output.
        errors: their standard errors (N, m).
        rounding: the client's relative rounding, by which inputs are moved.
    """
    generator = torch.Generator().manual_seed(KINKS.seed)
    best = _all_samples(model, layer, x, D, errors)
    for run in range(KINKS.runs):
        poor = best.misfit > KINKS.misfit
        if not poor.any():
            break
        moves = torch.randn(x.shape, generator=generator, dtype=torch.double).to(x)
        far = 2 * rounding * KINKS.growth**run  # the client's sums may have rounded further
        again = _all_samples(model, layer, x * (1 + far * moves), D, errors)
        best = best.better(replace(again, p=best.p))
    return best


def _all_samples(model: nn.Module, layer: str, x: Tensor, D: Tensor, errors: Tensor) -> Differences:
    classes = run_through(model, layer, x[:1]).logits.shape[1]
    at_once = max(SLOPES_AT_ONCE // (classes * D.shape[1]), 1)
    chunks = range(0, len(x), at_once)
    parts = [
        _fit_samples(run_through(model, layer, x[i : i + at_once]), *_rows(i, at_once, D, errors))
        for i in chunks
    ]
    names = ("p", "delta", "errors", "misfit")
    return Differences(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def _rows(start: int, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor[start : start + count] for tensor in tensors)


def _fit_samples(run: Passed, D: Tensor, errors: Tensor) -> Differences:
    """Fit ``D_i = J_iᵀ δ_i`` with ``Σ_c δ_ic = 0``, weighted by the errors."""
    classes = run.logits.shape[1]
    slopes = [
        torch.autograd.grad(run.logits[:, c].sum(), run.left, retain_graph=True)[0]
        for c in range(classes)
    ]
    J = torch.stack(slopes, 1)  # (N, C, m)
    weighted = J / errors[:, None]
    # The unknowns are δ without its part along (1, …, 1), which is zero.
    basis = torch.linalg.svd(torch.ones(1, classes, dtype=J.dtype, device=J.device))[2][1:]
    A = torch.einsum("kc,ncm->nkm", basis, weighted)
    size = A.flatten(1).norm(dim=1).clamp_min(SMALLEST_NORMAL)[:, None, None]
    gram = (A / size) @ (A / size).transpose(1, 2)
    inverse = torch.linalg.pinv(gram, hermitian=True, rtol=1e-13)
    right = ((A / size) @ (D / errors)[:, :, None]) / size
    t = inverse @ right
    left = (A.transpose(1, 2) @ t)[..., 0] - D / errors
    covariance = basis.T @ (inverse / size.square()) @ basis
    unseen = torch.linalg.matrix_rank(gram, hermitian=True, rtol=1e-13) < classes - 1
    deviation = covariance.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
    deviation = torch.where(unseen[:, None], torch.inf, deviation)
    freedom = max(D.shape[1] - classes + 1, 1)
    misfit = left.square().sum(1).div(freedom).sqrt()
    p = run.logits.detach().softmax(1)
    return Differences(p, (t[..., 0] @ basis), deviation, misfit)
