"""Pieces of evidence against each other: which hold, which agree, and what they say together."""

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

COARSE = 1e-5  # relative to G: a rounding beyond the dtype's that other layers may suffer from


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the evidence says of N clients: ``τ`` and its error (N,), where ``decided``."""

    scalar: Tensor
    error: Tensor
    decided: Tensor
    pieces: tuple[tuple[Evidence, ...], ...]  # by client
    coarse: Tensor  # (N,) rounding beyond the dtype's may explain that pieces disagree

    def take(self, rows: Tensor) -> Verdict:
        """What it says of some clients."""
        pieces = tuple(self.pieces[i] for i in rows.tolist())
        kept = (self.scalar[rows], self.error[rows], self.decided[rows])
        return Verdict(*kept, pieces, self.coarse[rows])

    def conflicts(self, client: int) -> tuple[Evidence, ...]:
        """Pieces that give another scalar, or are not what the model makes them."""
        return tuple(piece for piece in self.pieces[client] if piece.refutes)


def weigh(
    relations: Sequence[Relation], shares: Sequence[GradientShare], head: Head, factors: Factors
) -> Verdict:
    """Solve every relation the shares hold a gradient for; the most exact that holds decides."""
    used = [r for r in relations if all(r.parameter in share for share in shares)]
    coarse = factors.explained > COARSE
    if not used:
        nothing = torch.full_like(factors.sigma, math.nan)
        return Verdict(nothing, nothing, nothing.isfinite(), ((),) * len(shares), coarse)
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
    error = error + (known.minimum(4 * rounding) + 4 * (coarser + seen)) * scalar.abs()
    # Rounding of the share beyond its dtype's (a difference of checkpoints) is no contradiction.
    holds = (misfit <= factors.relative**0.5 + 4 * rounding) & (scalar != 0)
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
    return Verdict(tau, spread, holds.any(0), pieces, coarse)


def _notices(relation: Relation, factors: Factors) -> Tensor:
    """(N,) whether the relation would have noticed a second sample; False if it cannot say."""
    if isinstance(relation, Witness):
        return relation.notices(factors)
    return torch.zeros_like(factors.sigma, dtype=torch.bool)


def _gradients(relation: Relation, shares: Sequence[GradientShare], head: Head) -> Tensor:
    """(N, m) that parameter's gradients, in float64."""
    shapes = {tuple(share[relation.parameter].shape) for share in shares}
    if len(shapes) > 1:
        raise ShareError(f"the shares hold {relation.parameter!r} in different shapes: {shapes}")
    stacked = torch.stack([share[relation.parameter] for share in shares])
    return stacked.to(head.W.device).double()


def _rounding(relation: Relation, shares: Sequence[GradientShare], head: Head) -> Tensor:
    """(N,) the known absolute rounding of a gradient, relative to its size."""
    g = _gradients(relation, shares, head)
    errors = [share.rounding.get(relation.parameter, 0.0) for share in shares]
    absolute = torch.tensor(errors, dtype=g.dtype, device=g.device) * g.shape[1] ** 0.5
    return torch.div(absolute, g.norm(dim=-1).clamp_min(torch.finfo(g.dtype).tiny))


def _independent(
    relation: Relation, shares: Sequence[GradientShare], head: Head, factors: Factors
) -> Tensor:
    """(N,) the relative error of ``τ`` if the known rounding of every entry is independent.

    Rounding of the gradient ``g`` itself counts once, and that of the head's gradient through
    ``d = Wᵀu``, by at most the norm of ``W``. Eight standard errors are allowed for.
    """
    g = _gradients(relation, shares, head)
    errors = g.new_tensor([share.rounding.get(relation.parameter, 0.0) for share in shares])
    tiny = torch.finfo(g.dtype).tiny
    own = errors / g.norm(dim=-1).clamp_min(tiny)
    through = head.norm * factors.absolute / factors.sigma.clamp_min(tiny)
    d = head.back(factors.u).norm(dim=-1).clamp_min(tiny)
    both: Tensor = 8 * (own + through / d)
    return both
