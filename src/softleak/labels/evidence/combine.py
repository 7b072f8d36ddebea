"""Pieces of evidence compared: which hold, which agree, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from softleak.core.errors import ShareError
from softleak.core.factors import Factors
from softleak.core.head import Head
from softleak.core.results import Evidence
from softleak.core.share import GradientShare
from softleak.labels.evidence.relation import Estimate, Relation

# How far pieces of evidence may be off, and still hold.
COMBINE_MARGIN = 4.0  # how many times a known rounding or accuracy is counted
COMBINE_STANDARD_ERRORS = 8.0  # how many standard errors of independent rounding are allowed for


@torch.inference_mode()
def combine(
    relations: Sequence[Relation], shares: Sequence[GradientShare], head: Head, factors: Factors
) -> Estimate:
    """Solve every relation whose gradient the shares hold; the most exact that holds decides."""
    used = [r for r in relations if all(r.parameter in share for share in shares)]
    if not used:
        nothing = torch.full_like(factors.sigma, math.nan)
        return Estimate(nothing, nothing, nothing, ((),) * len(shares))
    gradients = [_gradients(relation, shares, head) for relation in used]
    solved = zip(used, gradients, strict=True)
    estimates = [relation.solve(g, head, factors) for relation, g in solved]
    scalar, error, misfit = (
        torch.stack([getattr(one, name) for one in estimates])  # (pieces, N)
        for name in ("scalar", "error", "misfit")
    )
    rounding, bound = _roundings(used, shares, head, factors, gradients)
    coarsest = scalar.new_tensor([relation.coarsest for relation in used])[:, None]
    own = scalar.new_tensor([shares[0].resolution(r.parameter, head.dtype) for r in used])[:, None]
    misfit = misfit.masked_fill(rounding + own > coarsest, math.inf)
    coarser = (own - factors.relative).clamp_min(0)
    seen = scalar.new_tensor([relation.accuracy for relation in used])[:, None]
    error = error + (bound + COMBINE_MARGIN * (coarser + seen)) * scalar.abs()
    # A share may be rounded more coarsely than its dtype (a difference of checkpoints). That is no
    # contradiction.
    holds = (misfit <= factors.relative**0.5 + COMBINE_MARGIN * rounding) & (scalar != 0)
    best = torch.where(holds, error / scalar.abs(), math.inf).argmin(0, keepdim=True)
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
    return Estimate(tau, spread, misfit.masked_fill(~holds, math.inf).amin(0), pieces)


def _notices(relation: Relation, factors: Factors) -> Tensor:
    """Return (N,) whether a second sample would have shown; False if the relation cannot say."""
    nothing = torch.zeros_like(factors.sigma, dtype=torch.bool)
    told: Tensor = getattr(relation, "notices", lambda _: nothing)(factors)
    return told


def _gradients(relation: Relation, shares: Sequence[GradientShare], head: Head) -> Tensor:
    """Return the gradients (N, m) of the relation's parameter, in float64."""
    shapes = {tuple(share[relation.parameter].shape) for share in shares}
    if len(shapes) > 1:
        raise ShareError(f"the shares hold {relation.parameter!r} in different shapes: {shapes}")
    stacked = torch.stack([share[relation.parameter] for share in shares])
    return stacked.to(head.W.device).double()


def _roundings(
    relations: Sequence[Relation], shares: Sequence[GradientShare], head: Head, factors: Factors,
    gradients: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the known rounding of gradients relative to their norms, and the error of ``τ`` by it.

    Both are (pieces, N). If the rounding of every entry is independent, that of the gradient ``g``
    itself counts directly, and that of the head's gradient counts through ``d = Wᵀu``, by at most
    the norm of ``W``. In no case is the error larger than if all entries of ``g`` are off together.
    """
    tiny = torch.finfo(torch.double).tiny
    errors = [[share.rounding.get(r.parameter, 0.0) for share in shares] for r in relations]
    absolute = gradients[0].new_tensor(errors)
    if not any(map(any, errors)):
        return absolute, absolute  # as most shares have it
    sizes = torch.stack([torch.linalg.vector_norm(g, dim=-1) for g in gradients]).clamp_min(tiny)
    entries = sizes.new_tensor([g.shape[1] ** 0.5 for g in gradients])[:, None]
    rounding = absolute * entries / sizes
    d = torch.linalg.vector_norm(head.back(factors.u), dim=-1).clamp_min(tiny)
    through = head.norm * factors.absolute / factors.sigma.clamp_min(tiny) / d
    independent = COMBINE_STANDARD_ERRORS * (absolute / sizes + through)
    return rounding, independent.minimum(COMBINE_MARGIN * rounding)
