"""This module puts the samples of a batch together: it searches, selects and solves (§9)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.batches.batch_certificate import certify
from softleak.batches.candidates import FoundSamples, compatible, joined
from softleak.batches.head_search import SAMPLE_SEARCH, SearchSettings, explore
from softleak.batches.head_space import HeadSpace
from softleak.batches.joint import POLISH, THOROUGH, JointSystem, polish
from softleak.batches.levenberg import LevenbergSettings, promise
from softleak.batches.saturated import biorthogonal, likely_sets, saturated_samples
from softleak.batches.shared_class import shared_out
from softleak.batches.supports import Supports
from softleak.batches.valley_walk import descend_valley, walk_valley

DESCENTS = 3  # how often a search is led to the bottom of its valley
CREEPING = 1e-2  # a search that ended with so much of the cost promised has not arrived
HOPELESS = 1e3  # a set of samples that misses by so many standard errors is not followed further
WALKED = 3  # the number of sets whose labels of one class are followed along their valley
CONVINCING = 2.0  # one of so many ends the search: samples that run away to infinity have more
EXPLAINED = 4.0  # a root mean square of so many standard errors is explained by rounding


@dataclass(frozen=True, eq=False)
class Whole:
    """This is a batch all of whose samples were found.

    Attributes:
        system: the system of all samples, weighed by rounding.
        x: (U,) its solution.
        misfit: the root mean square of its residuals, in standard errors.
    """

    system: JointSystem
    x: Tensor
    misfit: float

    @property
    def explained(self) -> bool:
        """Return whether rounding explains what is left, but not the gradient itself."""
        return self.misfit <= EXPLAINED < self.system.signal(self.x)


def find_batch(
    space: HeadSpace,
    supports: Supports,
    features: Tensor,
    *,
    scaled: bool = True,
    settings: SearchSettings = SAMPLE_SEARCH,
) -> tuple[Whole | None, FoundSamples]:
    """Search all samples of a batch; return the whole batch if it was found, and what else was.

    Args:
        space: the factors of the head's gradient.
        supports: the flats that labels may lie on.
        features: (n, I) usual features, from which the search starts.
        scaled: whether the scale of the share is known.
        settings: how long and how finely is searched.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    pool = saturated_samples(space, supports)
    searched = supports.opened() if space.is_levelled else supports
    known = pool.at.a[: space.rank - 1]
    tried: set[tuple[int, ...]] = set()
    unsolved: list[tuple[float, FoundSamples]] = []
    kept: tuple[Whole, FoundSamples] | None = None
    for number in range(settings.rounds):
        own = settings.of_round(number, len(supports))
        fresh = explore(space, searched, features, known, generator, scaled=scaled, settings=own)
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
    """Return the batch that is found along the valley of two samples of one class, or None."""
    alike = [
        (misfit, one)
        for misfit, one in unsolved
        if misfit < HOPELESS and len(set(one.kind.tolist())) < len(one)
    ]
    for _, found in sorted(alike, key=lambda tried: tried[0])[:WALKED]:
        for start in walk_valley(space, supports, found):
            whole = _solved(space, supports, start, scaled=True, steps=THOROUGH)
            if whole.explained:
                return whole
    return None


def solve_jointly(
    space: HeadSpace, supports: Supports, found: FoundSamples, *, scaled: bool = True
) -> Whole:
    """Solve for as many samples as the space has dimensions, from where each was found."""
    together = replace(found, at=biorthogonal(space, found.at, scaled=scaled))
    starts = [together, *shared_out(space, supports, found, scaled=scaled)]
    if space.is_levelled:  # There each sample's own faint probabilities tell its ``b`` best.
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
    steps: LevenbergSettings = POLISH,
) -> Whole:
    """Return the solution of the joint system that a local search from these samples finds.

    A point that rounding explains need not be the solution yet, and errors are those of a solution:
    a search that still creeps there is led to the bottom of its valley.
    """
    own = supports.take(found.kind)
    whole = _ended(polish(space, own, found.at, scaled=scaled, steps=steps))
    if not whole.explained:
        return whole
    for _ in range(DESCENTS if supports.unknowns else 0):
        system, x = whole.system, whole.x
        if promise(system, x[None], found.kind[:1]) <= CREEPING:
            break
        doubtful = int(certify(system, x, whole.misfit).label_errors.argmax())
        at = descend_valley(system, x, doubtful)
        ended = _ended(polish(space, own, at, scaled=scaled, steps=THOROUGH))
        whole = min(whole, ended, key=lambda one: one.misfit)
    return whole


def _ended(solution: tuple[JointSystem, Tensor]) -> Whole:
    system, x = solution
    values = system.values(x[None], torch.zeros(1, dtype=torch.long))
    return Whole(system, x, float(values.square().mean().sqrt()))
