"""This module looks for other labels that explain the gradient of a batch as well.

The gradient ``Σ δ_i x_iᵀ`` does not change if sample i has ``δ_i + t δ_s``, and sample s has
``c δ_s`` and the feature ``(x_s − t x_i) / c``, where ``c = 1 − t`` if the head's bias is known.
Where the network is sure of sample s, its probabilities are the same for many features. So nothing
contradicts such a trade if the label ``y_i − t δ_s`` lies in the family too, for example if it is a
mix with another class. The errors of a solution do not show it, since it is far away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.batches.batch_certificate import BatchCertificate
from softleak.batches.candidates import FoundSamples
from softleak.batches.head_space import HeadSpace
from softleak.batches.joint import THOROUGH, JointSystem, polish
from softleak.batches.one_sample import SamplePoints, SampleSystem
from softleak.batches.rounding import equation_errors, row_errors
from softleak.batches.supports import Supports


@dataclass(frozen=True)
class TradeSettings:
    """These settings decide which trades are tried, and which of them count.

    Attributes:
        sure: a sample of at least this probability of one class may trade.
        missed: the part of a label's change that may lie outside of the family before the fit.
        negative: a label may have entries so far below zero before the fit.
        misfit: a trade counts if its fit leaves no more than so many standard errors. It is more
            than what counts as explained, since a fit that is not at its end is no refutation.
    """

    sure: float = 0.99
    missed: float = 0.02
    negative: float = 1e-3
    misfit: float = 32.0


TRADES = TradeSettings()


@dataclass(frozen=True, eq=False)
class Trade:
    """This is a trade of sample ``i`` with ``s``: the flat that ``i`` moves to, and ``t``."""

    i: int
    s: int
    flat: int
    t: float


def without_traded(
    proof: BatchCertificate, system: JointSystem, x: Tensor, supports: Supports
) -> BatchCertificate:
    """Return a certificate in which no label counts as proved that a trade explains as well.

    Args:
        proof: what the equations prove near the solution.
        system: the system of all samples.
        x: (U,) its solution.
        supports: all flats that labels may lie on.
    """
    at, regular = system.point(x), proof.regular.clone()
    for trade in _trades(system, at, supports, proof.label_errors):
        labels = _labels_after(system, at, supports, trade)
        if labels is not None:
            regular &= (labels - at.label).abs().sum(-1) <= proof.label_errors
    return replace(proof, regular=regular)


def without_other_labels(
    proof: BatchCertificate, space: HeadSpace, supports: Supports, found: FoundSamples
) -> BatchCertificate:
    """Return a certificate in which no label counts as proved beside another with its feature.

    Where not all samples are known, nothing says whether the others can pay for such a label.

    Args:
        proof: what each sample's own equations prove.
        space: the factors of the head's gradient.
        supports: all flats that labels may lie on.
        found: the samples that were found.
    """
    identity = torch.eye(space.rank, dtype=space.U.dtype, device=space.U.device)
    system = SampleSystem(space, supports, identity, torch.zeros_like(identity[0]), scaled=False)
    at, regular = found.at, proof.regular.clone()
    errors = equation_errors(space, row_errors(space), at.a, at.b, at.p) * space.rows
    kinds = torch.arange(len(supports), device=identity.device)
    for i, b in enumerate(at.b):
        many = b.expand(len(kinds), -1)
        others = system.point(many, kinds)
        left = system.values(many, kinds) * others.a.norm(dim=-1, keepdim=True) / errors[i]
        fits = left.square().mean(-1).sqrt() <= TRADES.misfit
        fits &= others.label.amin(-1) >= -TRADES.negative
        fits &= (others.label - at.label[i]).abs().sum(-1) > proof.label_errors[i]
        regular[i] &= ~fits.any()
    return replace(proof, regular=regular)


def _trades(
    system: JointSystem, at: SamplePoints, supports: Supports, errors: Tensor
) -> Iterator[Trade]:
    """Yield trades after which both labels are in the family, as long as ``p_s`` stays."""
    for s in (at.p.amax(-1) >= TRADES.sure).nonzero()[:, 0].tolist():
        difference = at.p[s] - at.label[s]
        for i in range(len(at.label)):
            if i == s:
                continue
            t, label, missed = _hits(at.label[i], difference, supports)
            change = (label - at.label[i]).abs().sum(-1)
            paid = at.p[s] - _factor(system, t)[:, None] * difference
            fits = (missed <= TRADES.missed * change) & (change > errors[i])
            fits &= torch.minimum(label.amin(-1), paid.amin(-1)) >= -TRADES.negative
            yield from (Trade(i, s, flat, float(t[flat])) for flat in fits.nonzero()[:, 0].tolist())


def _hits(y: Tensor, difference: Tensor, supports: Supports) -> tuple[Tensor, Tensor, Tensor]:
    """Return where the line ``y − t difference`` (C,) comes nearest to each of N flats.

    Returns:
        ``t`` (N,), the labels (N, C) on the flats, and how far off the line they are (N,), in L1.
    """
    T = supports.directions
    columns = torch.cat([difference.expand(len(T), -1)[..., None], T], -1)
    solved = torch.linalg.pinv(columns, rtol=1e-9) @ (y - supports.origin)[..., None]
    label = supports.origin + (T @ solved[:, 1:])[..., 0]
    t = solved[:, 0, 0]
    return t, label, (y - t[:, None] * difference - label).abs().sum(-1)


def _factor(system: JointSystem, t: Tensor) -> Tensor:
    """Return ``c``, what the difference of the sample that pays is multiplied by."""
    return 1 - t if system.space.with_bias else torch.ones_like(t)


def _labels_after(
    system: JointSystem, at: SamplePoints, supports: Supports, trade: Trade
) -> Tensor | None:
    """Return the labels (R, C) that explain the gradient after a trade, or None."""
    c = float(_factor(system, at.b.new_tensor(trade.t)))
    if c == 0:
        return None
    b = at.b.clone()
    b[trade.s] = (b[trade.s] - trade.t * b[trade.i]) / c
    space, own = system.space, _moved(system.supports, supports, trade)
    p = torch.softmax(b @ space.logit_map.T + space.offset, -1)
    scale = (at.a[0] * at.b[0]).sum()
    start = SamplePoints(scale * torch.linalg.inv(b).mT, b, at.label, p)
    solved, x = polish(space, own, start, scaled=system.scaled, steps=THOROUGH)
    left = solved.values(x[None], torch.zeros(1, dtype=torch.long))
    labels = solved.point(x).label
    explained = float(left.square().mean().sqrt()) <= TRADES.misfit
    return labels if explained and float(labels.amin()) >= -TRADES.negative else None


def _moved(own: Supports, supports: Supports, trade: Trade) -> Supports:
    """Return the flat of each sample, with that of one sample replaced."""
    i, flat = trade.i, trade.flat
    origin, directions = own.origin.clone(), own.directions.clone()
    origin[i], directions[i] = supports.origin[flat], supports.directions[flat]
    names = (*own.classes[:i], supports.classes[flat], *own.classes[i + 1 :])
    return Supports(names, origin, directions)
