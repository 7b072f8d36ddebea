"""Look for other labels that explain the gradient of a batch as well.

The gradient ``Σ δ_i x_iᵀ`` does not change if sample i has ``δ_i + t δ_s``, and sample s has
``c δ_s`` and the feature ``(x_s − t x_i) / c``, where ``c = 1 − t`` if the head's bias is known.
Where the network is sure of sample s, its probabilities are the same for many features. So nothing
contradicts such a trade if the label ``y_i − t δ_s`` lies in the family too, for example if it is a
mix with another class. The errors of a solution do not show it, since it is far away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.batches.systems import (
    NO_KIND,
    SHORTEST_VECTOR,
    THOROUGH,
    FoundSamples,
    HeadSpace,
    JointSystem,
    SamplePoints,
    SampleSystem,
    Supports,
    as_sent,
    entry_errors,
    equation_errors,
    polish,
    row_errors,
)

PROOF_LOST_BITS = 6.0  # the bits of an equation that do not count
PROOF_NEEDED_BITS = 48.0  # the bits that the equations must test beyond what the unknowns absorb
PROOF_DEVIATIONS = 6.0  # an error bound is this many standard errors
# The largest relative standard error of an unknown sample, beyond which the errors are not those of
# a linear problem.
PROOF_LINEAR = 0.05
# The largest error bound of a difference of logits where small probabilities count.
PROOF_LOGITS = 1.0


@dataclass(frozen=True, eq=False)
class BatchCertificate:
    """What is proved of the samples of a batch, in their order."""

    bits: Tensor  # (R,) what the equations test beyond the unknowns, of all together or of each
    label_errors: Tensor  # (R,) bounds of the L1 errors of the labels
    feature_errors: Tensor  # (R,) bounds of the relative errors of the features
    regular: Tensor  # (R,) whether errors are small beside the samples, of all or of each

    def take(self, rows: Tensor) -> BatchCertificate:
        return BatchCertificate(*(part[rows] for part in vars(self).values()))

    @property
    def tested(self) -> Tensor:
        """Return whether the equations rule out a chance fit of each sample (R,)."""
        return self.bits >= PROOF_NEEDED_BITS


def certify(system: JointSystem, x: Tensor, misfit: float) -> BatchCertificate:
    """Return what is proved by the joint system at its solution ``x`` (U,)."""
    _, J = system.jacobian(x[None], NO_KIND)
    space, at = system.space, system.point(x)
    R, K = space.rank, system.supports.unknowns
    own = (at.b * space.S).norm(dim=-1, keepdim=True) / space.S
    # The size of every unknown (U,): a step of it moves the feature by its own length.
    sizes = torch.cat([own.flatten(), own.new_ones(len(x) - R * R)])
    told = J[0] * sizes
    used = told.norm(dim=0) > 0
    bits = excess_bits(told[:, used], redundant=R)
    covariance = _covariance(told[:, used])
    spread = torch.zeros_like(sizes)
    deviations = PROOF_DEVIATIONS * max(misfit, 1.0)
    spread[used] = deviations * covariance.diagonal().clamp_min(0).sqrt()
    of_b = spread[: R * R].reshape(R, R)
    of_c = spread[R * R : R * (R + K)].reshape(R, K) * sizes[R * R : R * (R + K)].reshape(R, K)
    labels = (system.supports.directions.abs() @ of_c[..., None])[..., 0].sum(-1)
    # Rounding of the gradient leaves a relative error outside of ``V`` as well.
    features = space.divided(at.b)
    n = entry_errors(space, as_sent(space, at), features)
    back = (n * space.rows * (at.b @ space.U.T)).norm(dim=-1)
    lengths = features.norm(dim=-1).clamp_min(SHORTEST_VECTOR)
    outside = PROOF_DEVIATIONS * space.factor * features.shape[1] ** 0.5 * back / lengths
    # Where one sample is open by as much as itself, it may be anything, and so may those beside it:
    # ``A = B⁻ᵀ`` has a pole there, and no linear error says how far the others move.
    regular = of_b.norm(dim=-1) < PROOF_DEVIATIONS * PROOF_LINEAR
    # A solution with negative entries of a label is not one of the batch, in no part of it.
    regular &= at.label.amin(-1) >= -(labels + space.relative)
    regular = regular.all().expand(R)
    if space.is_levelled:
        whole = torch.zeros_like(told.mT @ told)
        whole[used[:, None] & used] = covariance.flatten()
        whole = whole * sizes * sizes[:, None]
        each = torch.stack([whole[i : i + R, i : i + R] for i in range(0, R * R, R)])
        errors = deviations * _logit_errors(space, at.p, each)
        regular = regular & (errors < PROOF_LOGITS).all()
    total = of_b.norm(dim=-1) + outside
    return BatchCertificate(torch.full_like(labels, bits), labels, total, regular)


def certify_alone(
    space: HeadSpace, supports: Supports, found: FoundSamples
) -> tuple[BatchCertificate, Tensor]:
    """Return what each sample's own equations prove (§9), and their misfits (N,).

    ``a`` and the coefficients of the label are projected out, so a sample has ``C − R − K``
    equations for the R unknowns of its ``b``, and one more if the scale is known.
    """
    at, R = found.at, space.rank
    system = SampleSystem.whole(space, supports)
    values, J = system.jacobian(at.b, found.kind)
    n = row_errors(space)
    errors = equation_errors(space, n, at.a, at.b, at.p) * space.rows
    errors = errors / at.a.norm(dim=-1, keepdim=True)
    product = errors.norm(dim=-1, keepdim=True) * at.b.norm(dim=-1, keepdim=True)
    weights = torch.cat([errors, product], 1)[:, : values.shape[1]].clamp_min(space.relative)
    sizes = (at.b * space.S).norm(dim=-1, keepdim=True) / space.S
    told = J / weights[..., None] * sizes[:, None, :]
    misfits = (values / weights).square().mean(-1).sqrt()
    spare = 1 + supports.unknowns + R  # What a constant, the label and ``a`` take of C equations.
    bits = torch.tensor([excess_bits(rows, spare) for rows in told]).to(values)
    covariances = torch.stack([_covariance(rows) for rows in told])
    bounds = PROOF_DEVIATIONS * misfits.clamp_min(1.0)
    spread = bounds * covariances.diagonal(dim1=1, dim2=2).clamp_min(0).sum(-1).sqrt()
    slopes = system.label_slopes(at.b, found.kind) * sizes[:, None, :]
    variances = torch.einsum("ncr,nrs,ncs->nc", slopes, covariances, slopes)
    labels = bounds * variances.clamp_min(0).sqrt().sum(-1)
    direct = errors.norm(dim=-1) * at.a.norm(dim=-1) * system.label_gains(found.kind)
    # A label that its own equations leave open along its flat is told by the whole batch alone.
    regular = (spread < PROOF_DEVIATIONS * PROOF_LINEAR) & ~system.open_flats[found.kind]
    if space.is_levelled:
        own = covariances * sizes[:, None] * sizes[..., None]
        regular &= bounds * _logit_errors(space, at.p, own) < PROOF_LOGITS
    return BatchCertificate(bits, labels + bounds * direct, spread, regular), misfits


def excess_bits(told: Tensor, redundant: int) -> float:
    """Return the bits that rows (E, U), in standard errors, test beyond what unknowns absorb."""
    bits = (told.norm(dim=1).clamp_min(1.0).log2() - PROOF_LOST_BITS).clamp_min(0.0)
    left = bits.sort(descending=True).values[told.shape[1] + redundant :]
    return float(left.sum())


UNTOLD = 1e60  # the variance of an unknown that no equation tells


def _covariance(told: Tensor) -> Tensor:
    """Return the covariance (U, U) of unknowns in units of their own size."""
    scale = told.norm(dim=0)
    if not bool((scale > 0).all()):  # an unknown that no equation tells
        return torch.eye(len(scale)).to(told) * UNTOLD
    _, s, vh = torch.linalg.svd(told / scale, full_matrices=False)
    if len(s) < told.shape[1]:
        return torch.full_like(vh[:1].T @ vh[:1], torch.inf)
    floor = torch.finfo(s.dtype).eps * s[0]
    half = vh.T / s.clamp_min(floor) / scale[:, None]
    return torch.mm(half, half.T)


def _logit_errors(space: HeadSpace, p: Tensor, covariances: Tensor) -> Tensor:
    """Return the largest standard error (N,) of a logit beside that of the class that leads."""
    beside = space.logit_map - space.logit_map[p.argmax(-1)][:, None]
    variances = torch.einsum("ncr,nrs,ncs->nc", beside, covariances, beside)
    return variances.clamp_min(0).amax(-1).sqrt()


TRADES_SURE = 0.99  # a sample of at least this probability of one class may trade
# The part of a label's change that may lie outside of the family before the fit.
TRADES_MISSED = 0.02
TRADES_NEGATIVE = 1e-3  # a label may have entries so far below zero before the fit
# A trade counts if its fit leaves no more than this many standard errors. It is more than what
# counts as explained, since a fit that is not at its end is no refutation.
TRADES_MISFIT = 32.0


def without_traded(
    proof: BatchCertificate, system: JointSystem, x: Tensor, supports: Supports
) -> BatchCertificate:
    """Return a certificate in which no label counts as proved that a trade explains as well."""
    at, regular = system.point(x), proof.regular.clone()
    for s in (at.p.amax(-1) >= TRADES_SURE).nonzero()[:, 0].tolist():
        difference = at.p[s] - at.label[s]
        for i in (other for other in range(len(at.label)) if other != s):
            t, label, missed = _hits(at.label[i], difference, supports)
            change = (label - at.label[i]).abs().sum(-1)
            # What the difference of the sample that pays is multiplied by.
            c = 1 - t if system.space.with_bias else torch.ones_like(t)
            paid = at.p[s] - c[:, None] * difference
            fits = (missed <= TRADES_MISSED * change) & (change > proof.label_errors[i])
            fits &= torch.minimum(label.amin(-1), paid.amin(-1)) >= -TRADES_NEGATIVE
            for flat in (fits & (c != 0)).nonzero()[:, 0].tolist():
                found = _labels_after(system, at, supports, (i, s, flat), float(t[flat]))
                if found is not None:
                    regular &= (found - at.label).abs().sum(-1) <= proof.label_errors
    return replace(proof, regular=regular)


def without_other_labels(
    proof: BatchCertificate, space: HeadSpace, supports: Supports, found: FoundSamples
) -> BatchCertificate:
    """Return a certificate in which no label counts as proved beside another with its feature."""
    system = SampleSystem.whole(replace(space, scaled=False), supports)
    at, regular = found.at, proof.regular.clone()
    errors = equation_errors(space, row_errors(space), at.a, at.b, at.p) * space.rows
    kinds = torch.arange(len(supports), device=space.U.device)
    for i, b in enumerate(at.b):
        many = b.expand(len(kinds), -1)
        others = system.point(many, kinds)
        left = system.values(many, kinds) * others.a.norm(dim=-1, keepdim=True) / errors[i]
        fits = left.square().mean(-1).sqrt() <= TRADES_MISFIT
        fits &= others.label.amin(-1) >= -TRADES_NEGATIVE
        fits &= (others.label - at.label[i]).abs().sum(-1) > proof.label_errors[i]
        regular[i] &= ~fits.any()
    return replace(proof, regular=regular)


def _hits(y: Tensor, difference: Tensor, supports: Supports) -> tuple[Tensor, Tensor, Tensor]:
    """Return where the line ``y − t difference`` (C,) comes nearest to each of N flats.

    That is ``t`` (N,), the labels (N, C) on the flats, and how far they are off it (N,), in L1.
    """
    T = supports.directions
    columns = torch.cat([difference.expand(len(T), -1)[..., None], T], -1)
    solved = torch.linalg.pinv(columns, rtol=1e-9) @ (y - supports.origin)[..., None]
    label = supports.origin + (T @ solved[:, 1:])[..., 0]
    t = solved[:, 0, 0]
    return t, label, (y - t[:, None] * difference - label).abs().sum(-1)


def _labels_after(
    system: JointSystem, at: SamplePoints, supports: Supports, trade: tuple[int, int, int], t: float
) -> Tensor | None:
    """Return the labels (R, C) that explain the gradient after a trade, or None."""
    i, s, flat = trade
    space, own, b = system.space, system.supports, at.b.clone()
    b[s] = (b[s] - t * b[i]) / (1 - t if space.with_bias else 1.0)
    # The flat of each sample, with that of one sample replaced:
    origin, directions = own.origin.clone(), own.directions.clone()
    origin[i], directions[i] = supports.origin[flat], supports.directions[flat]
    names = (*own.classes[:i], supports.classes[flat], *own.classes[i + 1 :])
    own = Supports(names, origin, directions)
    scale = (at.a[0] * at.b[0]).sum()
    start = SamplePoints(scale * torch.linalg.inv(b).mT, b, at.label, space.predicted(b))
    solved, x = polish(space, own, start, solver=THOROUGH)
    labels = solved.point(x).label
    explained = solved.misfit(x) <= TRADES_MISFIT
    return labels if explained and float(labels.amin()) >= -TRADES_NEGATIVE else None
