"""Read every sample of a batch from the gradient of the head (§9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.batches.certificate import (
    BatchCertificate,
    certify,
    certify_alone,
    without_other_labels,
    without_traded,
)
from softleak.batches.search import (
    ROUNDS,
    SEED,
    FoundSamples,
    biorthogonal,
    compatible,
    descend_flat_direction,
    explore,
    joined,
    likely_sets,
    saturated_samples,
    shared_out,
    starts_of_round,
    walk_flat_direction,
)
from softleak.batches.space import HeadSpace
from softleak.batches.systems import (
    POLISH,
    THOROUGH,
    JointSystem,
    SamplePoints,
    Supports,
    joined_supports,
    polish,
    supports_of,
)
from softleak.core.families import Family, Mixed, Smoothed, SmoothedMixed
from softleak.numerics.levenberg import Levenberg, promise

DESCENTS = 3  # how often a search is led to the bottom of its flat direction
UNSETTLED = 1e-2  # a search that ended with this part of the cost promised has not arrived
TOO_FAR = 1e3  # a set of samples that misses by this many standard errors is not followed further
WALKED = 3  # the number of sets whose labels of one class are followed along their flat direction
CONVINCING = 2.0  # one of this misfit ends the search: samples that run away to infinity have more
EXPLAINED = 4.0  # a root mean square of this many standard errors is explained by rounding


@dataclass(frozen=True, eq=False)
class Whole:
    """A batch all of whose samples were found."""

    system: JointSystem  # the system of all samples, weighed by rounding
    x: Tensor  # (U,) its solution
    misfit: float  # the root mean square of its residuals, in standard errors

    @property
    def explained(self) -> bool:
        """Return whether rounding explains what is left, but not the gradient itself."""
        return self.misfit <= EXPLAINED < self.system.signal(self.x)


def find_batch(
    space: HeadSpace, supports: Supports, features: Tensor, *, scaled: bool = True
) -> tuple[Whole | None, FoundSamples]:
    """Search all samples of a batch; return the whole batch if it was found, and what else was."""
    generator = torch.Generator().manual_seed(SEED)
    pool = saturated_samples(space, supports)
    searched = supports.opened() if space.is_levelled else supports
    known = pool.at.a[: space.rank - 1]
    tried: set[tuple[int, ...]] = set()
    unsolved: list[tuple[float, FoundSamples]] = []
    kept: tuple[Whole, FoundSamples] | None = None
    for number in range(ROUNDS):
        starts = starts_of_round(number, len(supports))
        fresh = explore(space, searched, features, known, generator, starts, scaled=scaled)
        pool = joined(pool, fresh)
        sets = compatible(pool, space.rank) + likely_sets(
            space, searched, pool, scaled=scaled, alike=number > 0
        )
        for members in sets:
            if len(members) == space.rank and tuple(members) not in tried:
                tried.add(tuple(members))
                chosen = pool.take(members)
                whole = solve_jointly(space, supports, chosen, scaled=scaled)
                if whole.explained and whole.misfit <= CONVINCING:
                    return whole, chosen
                if whole.explained and (kept is None or whole.misfit < kept[0].misfit):
                    kept = whole, chosen
                unsolved.append((whole.misfit, chosen))
        # Every other round starts from nothing, in case what was found is wrong.
        part = pool.take(sets[0] if sets and number % 3 != 2 else [])
        known = part.at.a[: space.rank - 1]
    if kept is not None:
        return kept
    walked = _walked(space, supports, unsolved) if scaled else None
    return walked, pool.take(compatible(pool, space.rank)[0] if len(pool) else [])


def _walked(
    space: HeadSpace, supports: Supports, unsolved: list[tuple[float, FoundSamples]]
) -> Whole | None:
    """Return the batch that is found along the flat direction of two samples of a class."""
    alike = [
        (misfit, one)
        for misfit, one in unsolved
        if misfit < TOO_FAR and len(set(one.kind.tolist())) < len(one)
    ]
    for _, found in sorted(alike, key=lambda tried: tried[0])[:WALKED]:
        for start in walk_flat_direction(space, supports, found):
            whole = _solved(space, supports, start, scaled=True, solver=THOROUGH)
            if whole.explained:
                return whole
    return None


def solve_jointly(
    space: HeadSpace, supports: Supports, found: FoundSamples, *, scaled: bool = True
) -> Whole:
    """Solve for as many samples as the space has dimensions, from where each was found."""
    together = replace(found, at=biorthogonal(space, found.at, scaled=scaled))
    starts = [together, *shared_out(space, supports, found, scaled=scaled)]
    if space.is_levelled:  # There each sample's own small probabilities tell its ``b`` best.
        starts = [found, *starts]
    best = _solved(space, supports, starts[0], scaled=scaled)
    for start in starts[1:]:
        if best.explained:
            break
        best = min(best, _solved(space, supports, start, scaled=scaled), key=lambda one: one.misfit)
    return best


def _solved(
    space: HeadSpace,
    supports: Supports,
    found: FoundSamples,
    *,
    scaled: bool,
    solver: Levenberg = POLISH,
) -> Whole:
    """Return the solution of the joint system that a local search from these samples finds.

    A point that rounding explains need not be the solution yet, and errors are those of a solution:
    a search that still moves slowly there is led to the bottom of its flat direction.
    """
    own = supports.take(found.kind)

    def polished(at: SamplePoints, solver: Levenberg) -> Whole:
        system, x = polish(space, own, at, scaled=scaled, solver=solver)
        return Whole(system, x, system.misfit(x))

    whole = polished(found.at, solver)
    if not whole.explained:
        return whole
    for _ in range(DESCENTS if supports.unknowns else 0):
        system, x = whole.system, whole.x
        if promise(system, x[None], found.kind[:1]) <= UNSETTLED:
            break
        doubtful = int(certify(system, x, whole.misfit).label_errors.argmax())
        at = descend_flat_direction(system, x, doubtful)
        whole = min(whole, polished(at, THOROUGH), key=lambda one: one.misfit)
    return whole


# Families that are tried in turn if none is named, each beside those before it.
USUAL: tuple[Family, ...] = (Smoothed(), Mixed(2), SmoothedMixed(2))


# What bounds the classes that are tried.
NARROW_ALL_CLASSES = 20  # up to this number of classes, all of them are tried
NARROW_PER_SAMPLE = 3  # beyond, this many per sample are tried, those that the gradient raises most
NARROW_AT_LEAST = 12  # and no fewer than this


@dataclass(frozen=True, eq=False)
class HeadReading:
    """What the head's gradient says of a batch."""

    space: HeadSpace  # the factors of the gradient, at the scale that fits
    at: SamplePoints  # the samples that were found
    certificate: BatchCertificate  # what is proved of them, in their order
    whole: bool  # whether these are all samples that the gradient shows
    family: Family  # the last family that was tried
    scale: float = 1.0  # ``a·b``: the number of samples over the assumed one, where searched


def read_head(
    space: HeadSpace,
    features: Tensor,
    family: Family | None,
    *,
    scales: tuple[bool, ...] = (True, False),
    said: bool = True,
) -> HeadReading | None:
    """Return the samples behind a head's gradient, or None if none was found.

    Args:
        space: the factors of the gradient, at the assumed scale.
        features: (n, I) usual features, from which the search starts.
        family: the family of every label; None tries the usual ones in turn.
        scales: whether the scale is taken as known, in the order in which that is tried.
        said: whether the number of samples is stated. Otherwise the scale must follow from
            the numbers as well, since the labels of saturated samples move with it.
    """
    likely = _likely(space, features)
    best: HeadReading | None = None
    for scaled in scales:
        for tried, supports in _families(family, space.classes, likely):
            if 1 + supports.unknowns + space.rank > space.classes:
                continue  # There are not more equations than unknowns.
            whole, part = find_batch(space, supports, features, scaled=scaled)
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
    if space.classes <= NARROW_ALL_CLASSES:
        return list(range(space.classes))
    if space.with_bias:
        raised = space.mean_difference
    elif len(features):
        raised = (space.gradient / space.columns) @ features.mean(0)
    else:
        raised = space.gradient.sum(1)
    count = max(NARROW_AT_LEAST, NARROW_PER_SAMPLE * space.rank)
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
        return HeadReading(space, at, proof, True, family, scale)
    if not len(part) or not scaled:
        return None
    own = supports.opened() if space.is_levelled else supports
    proof, misfits = certify_alone(space, own, part)
    proof = without_other_labels(proof, space, own, part)
    rows = (misfits <= 4.0).nonzero()[:, 0]
    if not len(rows):
        return None
    found = part.take(rows)
    return HeadReading(space, found.at, proof.take(rows), False, family)
