"""This module reads every sample of a batch from the gradient of the head (§9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.batches.batch_certificate import BatchCertificate, certify, certify_alone
from softleak.batches.candidates import FoundSamples
from softleak.batches.head_search import SAMPLE_SEARCH, SearchSettings
from softleak.batches.head_space import HeadSpace
from softleak.batches.one_sample import SamplePoints
from softleak.batches.supports import Supports, joined_supports, supports_of
from softleak.batches.traded_labels import without_other_labels, without_traded
from softleak.batches.whole_batch import Whole, find_batch
from softleak.families import Family, Mixed, Smoothed, SmoothedMixed

# Families that are tried in turn if nobody named one, each beside those before it.
USUAL: tuple[Family, ...] = (Smoothed(), Mixed(2), SmoothedMixed(2))


@dataclass(frozen=True)
class NarrowSettings:
    """These settings bound the classes that are tried.

    Attributes:
        all_classes: up to so many classes, all of them are tried.
        per_sample: beyond, so many per sample are tried, those that the gradient raises most.
        at_least: and no fewer than this.
    """

    all_classes: int = 20
    per_sample: int = 3
    at_least: int = 12


NARROW = NarrowSettings()


@dataclass(frozen=True, eq=False)
class HeadReading:
    """This is what the head's gradient says of a batch.

    Attributes:
        space: the factors of the gradient, at the scale that fits.
        at: the samples that were found.
        certificate: what is proved of them, in their order.
        whole: whether these are all samples that the gradient shows.
        misfit: the root mean square of the residuals, in standard errors.
        family: the last family that was tried.
        scale: ``a·b``: the number of samples over the assumed one, where it was searched.
    """

    space: HeadSpace
    at: SamplePoints
    certificate: BatchCertificate
    whole: bool
    misfit: float
    family: Family
    scale: float = 1.0


def read_head(
    space: HeadSpace,
    features: Tensor,
    family: Family | None,
    *,
    scales: tuple[bool, ...] = (True, False),
    said: bool = True,
    settings: SearchSettings = SAMPLE_SEARCH,
) -> HeadReading | None:
    """Return the samples behind a head's gradient, or None if none was found.

    Args:
        space: the factors of the gradient, at the assumed scale.
        features: (n, I) usual features, from which the search starts.
        family: the family of every label; None tries the usual ones in turn.
        scales: whether the scale is taken as known, in the order in which that is tried.
        said: whether somebody said how many samples there are. Otherwise the scale must follow from
            the numbers as well, since the labels of saturated samples move with it.
        settings: how long and how finely is searched.
    """
    likely = _likely(space, features)
    best: HeadReading | None = None
    for scaled in scales:
        for tried, supports in _families(family, space.classes, likely):
            if 1 + supports.unknowns + space.rank > space.classes:
                continue  # There are not more equations than unknowns.
            whole, part = find_batch(space, supports, features, scaled=scaled, settings=settings)
            reading = _reading(space, supports, whole, part, tried, scaled, said)
            if reading is not None and reading.whole:
                return reading
            if best is None or (reading and len(reading.at.a) > len(best.at.a)):
                best = reading
    return best


def _likely(space: HeadSpace, features: Tensor) -> list[int]:
    """Return the classes that labels may hold: those whose logits the batch raises most.

    A class that the network predicts of many samples is lowered in the mean even if one of them has
    its label. Its probabilities sum to more than one then, so fewer than R classes can be of that
    kind, and they are those that the batch lowers most.
    """
    if space.classes <= NARROW.all_classes:
        return list(range(space.classes))
    if space.with_bias:
        raised = space.mean_difference
    elif len(features):
        raised = (space.gradient / space.columns) @ features.mean(0)
    else:
        raised = space.gradient.sum(1)
    count = max(NARROW.at_least, NARROW.per_sample * space.rank)
    order = raised.argsort().tolist()
    return order[:count] + order[count:][-(space.rank - 1) :]


def _families(
    family: Family | None, classes: int, likely: list[int]
) -> Iterator[tuple[Family, Supports]]:
    """Yield families with their flats; each of the usual ones comes with those before it."""
    held: Supports | None = None
    for tried in USUAL if family is None else (family,):
        own = supports_of(tried, classes, likely)
        if own is not None:
            held = own if held is None else joined_supports(held, own)
            yield tried, held


def _reading(
    space: HeadSpace,
    supports: Supports,
    whole: Whole | None,
    part: FoundSamples,
    family: Family,
    scaled: bool,
    said: bool,
) -> HeadReading | None:
    if whole is not None and whole.explained:
        at = whole.system.point(whole.x)
        system, x = whole.system, whole.x
        if scaled and not said:
            system, x = replace(system, scaled=False), torch.cat([x, torch.zeros_like(x[:1])])
        proof = without_traded(certify(system, x, whole.misfit), system, x, supports)
        scale = float(whole.system.unpack(whole.x)[2])
        return HeadReading(space, at, proof, True, whole.misfit, family, scale)
    if not len(part) or not scaled:
        return None
    own = supports.opened() if space.is_levelled else supports
    proof, misfits = certify_alone(space, own, part)
    proof = without_other_labels(proof, space, own, part)
    rows = (misfits <= 4.0).nonzero()[:, 0]
    if not len(rows):
        return None
    found = part.take(rows)
    return HeadReading(space, found.at, proof.take(rows), False, float(misfits[rows].max()), family)
