"""Pieces of evidence compared: which hold, which agree, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.errors import ShareError
from softleak.factors import Factors
from softleak.head import Head
from softleak.labels.evidence.relation import Relation, Witness
from softleak.results import Evidence
from softleak.share import GradientShare


@dataclass(frozen=True)
class CombineSettings:
    """How far pieces of evidence may be off, and still hold.

    Attributes:
        coarse: rounding relative to ``G`` beyond which that of other layers may explain that
            pieces of evidence disagree.
        margin: how many times a known rounding or accuracy is counted.
        standard_errors: how many standard errors of independent rounding are allowed for.
    """

    coarse: float = 1e-5
    margin: float = 4.0
    standard_errors: float = 8.0


COMBINE = CombineSettings()


@dataclass(frozen=True, eq=False)
class CombinedEvidence:
    """What all pieces of evidence together say of N clients.

    Attributes:
        scalar: (N,) τ of the most exact piece that holds.
        error: (N,) a bound of its error.
        decided: (N,) whether any piece holds; else scalar and error mean nothing.
        pieces: for each client, what every piece says.
        coarse: (N,) whether rounding beyond the dtype's may explain that pieces disagree.
    """

    scalar: Tensor
    error: Tensor
    decided: Tensor
    pieces: tuple[tuple[Evidence, ...], ...]
    coarse: Tensor

    def take(self, rows: Tensor) -> CombinedEvidence:
        """Return what it says of the clients with these indices."""
        pieces = tuple(self.pieces[i] for i in rows.tolist())
        kept = (self.scalar[rows], self.error[rows], self.decided[rows])
        return CombinedEvidence(*kept, pieces, self.coarse[rows])

    def conflicts(self, client: int) -> tuple[Evidence, ...]:
        """Return the pieces that contradict the scalar, or that do not hold."""
        return tuple(piece for piece in self.pieces[client] if piece.refutes)


def combine(
    relations: Sequence[Relation], shares: Sequence[GradientShare], head: Head, factors: Factors
) -> CombinedEvidence:
    """Solve every relation whose gradient the shares hold; the most exact that holds decides.

    Args:
        relations: what the model offers.
        shares: what N clients sent; all of them hold the same gradients.
        head: the model's last linear layer.
        factors: the factors of the N head gradients.
    """
    used = [r for r in relations if all(r.parameter in share for share in shares)]
    coarse = factors.explained > COMBINE.coarse
    if not used:
        nothing = torch.full_like(factors.sigma, math.nan)
        return CombinedEvidence(nothing, nothing, nothing.isfinite(), ((),) * len(shares), coarse)
    estimates = [
        relation.solve(_gradients(relation, shares, head), head, factors) for relation in used
    ]
    scalar = torch.stack([e.scalar for e in estimates])  # (pieces, N)
    misfit = torch.stack([e.misfit for e in estimates])
    rounding = torch.stack([_rounding(relation, shares, head) for relation in used])
    coarsest = scalar.new_tensor([relation.coarsest for relation in used])[:, None]
    own = [shares[0].resolution(relation.parameter, head.dtype) for relation in used]
    silent = rounding + scalar.new_tensor(own)[:, None] > coarsest
    misfit = misfit.masked_fill(silent, math.inf)
    error = torch.stack([e.error for e in estimates])
    coarser = (scalar.new_tensor(own) - factors.relative).clamp_min(0)[:, None]
    seen = scalar.new_tensor([relation.accuracy for relation in used])[:, None]
    known = torch.stack([_independent(relation, shares, head, factors) for relation in used])
    margin = COMBINE.margin
    error = error + (known.minimum(margin * rounding) + margin * (coarser + seen)) * scalar.abs()
    # A share may be rounded more coarsely than its dtype (a difference of checkpoints). That is no
    # contradiction.
    holds = (misfit <= factors.relative**0.5 + margin * rounding) & (scalar != 0)
    ranked = torch.where(holds, error / scalar.abs(), math.inf)
    best = ranked.argmin(0, keepdim=True)
    tau, spread = scalar.gather(0, best)[0], error.gather(0, best)[0]
    agrees = holds & ((scalar - tau).abs() <= error + spread)
    notices = torch.stack([_notices(relation, factors) for relation in used])
    columns = [x.T.tolist() for x in (scalar, error, misfit, holds, agrees, agrees & notices)]
    pieces = tuple(
        tuple(
            Evidence(relation.parameter, relation.explanation, *values)
            for relation, *values in zip(used, *rows, strict=True)
        )
        for rows in zip(*columns, strict=True)
    )
    return CombinedEvidence(tau, spread, holds.any(0), pieces, coarse)


def _notices(relation: Relation, factors: Factors) -> Tensor:
    """Return (N,) whether a second sample would have shown; False if the relation cannot say."""
    if isinstance(relation, Witness):
        return relation.notices(factors)
    return torch.zeros_like(factors.sigma, dtype=torch.bool)


def _gradients(relation: Relation, shares: Sequence[GradientShare], head: Head) -> Tensor:
    """Return the gradients (N, m) of the relation's parameter, in float64."""
    shapes = {tuple(share[relation.parameter].shape) for share in shares}
    if len(shapes) > 1:
        raise ShareError(f"the shares hold {relation.parameter!r} in different shapes: {shapes}")
    stacked = torch.stack([share[relation.parameter] for share in shares])
    return stacked.to(head.W.device).double()


def _rounding(relation: Relation, shares: Sequence[GradientShare], head: Head) -> Tensor:
    """Return the known absolute rounding (N,) of a gradient, relative to its norm."""
    g = _gradients(relation, shares, head)
    errors = [share.rounding.get(relation.parameter, 0.0) for share in shares]
    absolute = torch.tensor(errors, dtype=g.dtype, device=g.device) * g.shape[1] ** 0.5
    return torch.div(absolute, g.norm(dim=-1).clamp_min(torch.finfo(g.dtype).tiny))


def _independent(
    relation: Relation, shares: Sequence[GradientShare], head: Head, factors: Factors
) -> Tensor:
    """Return the relative error (N,) of ``τ`` if the known rounding of every entry is independent.

    Rounding of the gradient ``g`` itself counts directly. Rounding of the head's gradient counts
    through ``d = Wᵀu``, by at most the norm of ``W``.
    """
    g = _gradients(relation, shares, head)
    errors = g.new_tensor([share.rounding.get(relation.parameter, 0.0) for share in shares])
    tiny = torch.finfo(g.dtype).tiny
    own = errors / g.norm(dim=-1).clamp_min(tiny)
    through = head.norm * factors.absolute / factors.sigma.clamp_min(tiny)
    d = head.back(factors.u).norm(dim=-1).clamp_min(tiny)
    both: Tensor = COMBINE.standard_errors * (own + through / d)
    return both
