"""How many equations a family imposes: only more of them than unknowns can prove a label."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.families import Family
from softleak.labels.curve import Curve, residual


@dataclass(frozen=True)
class EquationSettings:
    """These settings count which equations test a solution."""

    step: float = 1e-8  # the step of a finite difference
    beside: float = 1e-4  # how far beside a scalar the family is looked at
    blunt_bits: float = 6.0  # bits: an equation known to one part in 64 tests nothing yet
    nudge: float = 1e-4  # of a scalar: how far it is moved to see which equations notice
    entries: int = 32  # entries looked at: with more classes there are always enough equations


EQUATIONS = EquationSettings()


@torch.inference_mode()
def count_equations(family: Family, y: Tensor) -> Tensor:
    """Return (K,) the rank of what ``project`` takes away around labels (K, C), less what is
    automatic.

    For a projection that is its trace. Entries sum to one whatever the scalar (Theorem 1), so at
    most C − 1 equations are new; with more than 32 classes those of the first 32 are counted.
    """
    classes = y.shape[-1]
    # Beside the label, where no two entries are equal and it is plain which are free.
    beside = family.project(y) + EQUATIONS.beside * torch.linspace(1, 2, classes).to(y)
    looked_at = min(EQUATIONS.entries, classes)
    moves = EQUATIONS.step * torch.eye(looked_at, classes, dtype=y.dtype, device=y.device)
    moved = family.project(beside[:, None] + moves) - family.project(beside)[:, None]
    kept = moved.diagonal(dim1=-2, dim2=-1) / EQUATIONS.step
    return (1 - kept).sum(-1).round().clamp(max=classes - 1)


@torch.inference_mode()
def spare_bits(curve: Curve, family: Family, scalar: Tensor, unknowns: int) -> Tensor:
    """Return (K,) how much the equations test beyond what the unknowns absorb, in bits.

    An equation that would be off by ``d`` if ``log t`` were off by one, and is known to within
    ``e``, holds by chance with probability ``e/d``: it tests ``log2(d/e)`` bits. An equation that
    holds at every scalar (two zeros, one of them the softmax's) tests nothing, and one that is
    known to a few per cent would hold as well for a label that is nearly of the family: the first
    ``blunt_bits`` of each do not count. Each unknown makes the sharpest of the equations hold by
    itself. They are left out first, since the floor that all entries share moves with them. Nor
    does it count what a polynomial in the logits explains: where logits are small the softmax is
    one, and the unknowns can level any label that depends on them smoothly.
    """
    beside = scalar[:, None] * scalar.new_tensor([1 + EQUATIONS.nudge, 1 - EQUATIONS.nudge])
    (ahead, behind), (error, _) = (both.unbind(1) for both in residual(curve, family, beside))
    slope = (ahead - behind) / (2 * EQUATIONS.nudge) / error
    absorbed = slope.abs().topk(min(unknowns, slope.shape[-1]), dim=-1).indices
    slope = slope.scatter(-1, absorbed, 0.0)
    logits = curve.logits()
    if logits is not None:
        slope = _without_polynomial(slope, logits, error, unknowns)
    bits = (slope.abs().clamp_min(1.0).log2() - EQUATIONS.blunt_bits).clamp_min(0.0)
    return bits.sum(-1)


def _without_polynomial(values: Tensor, logits: Tensor, error: Tensor, degree: int) -> Tensor:
    """Return what a polynomial in the logits leaves of ``values`` (K, C), both in units of
    ``error``.
    """
    x = logits / logits.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(logits.dtype).tiny)
    tested = (values != 0).to(values.dtype)
    powers = torch.stack([x**k for k in range(degree + 1)], -1) / error[..., None]
    columns = powers * tested[..., None]
    columns = columns / columns.norm(dim=1, keepdim=True).clamp_min(1e-300)
    basis: Tensor = torch.linalg.qr(columns).Q
    return (values - (basis @ (basis.mT @ values[..., None]))[..., 0]) * tested
