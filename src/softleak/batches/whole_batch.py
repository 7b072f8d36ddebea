"""This module puts the samples of a batch together: it searches, selects and solves (§9)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.batches.candidates import FoundSamples, compatible, joined
from softleak.batches.head_search import SAMPLE_SEARCH, SearchSettings, explore
from softleak.batches.head_space import HeadSpace
from softleak.batches.joint import JointSystem, polish
from softleak.batches.saturated import biorthogonal, likely_sets, saturated_samples
from softleak.batches.shared_class import shared_out
from softleak.batches.supports import Supports

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
        """Return whether rounding explains what is left."""
        return self.misfit <= EXPLAINED


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
    pool, best = saturated_samples(space, supports), None
    known = pool.at.a[: space.rank - 1]
    tried: set[tuple[int, ...]] = set()
    for number in range(settings.rounds):
        own = settings.of_round(number, len(supports))
        fresh = explore(space, supports, features, known, generator, scaled=scaled, settings=own)
        pool = joined(pool, fresh)
        sets = compatible(pool, space.rank) + likely_sets(space, supports, pool, scaled=scaled)
        for members in sets:
            if len(members) == space.rank and tuple(members) not in tried:
                tried.add(tuple(members))
                whole = solve_jointly(space, supports, pool.take(members), scaled=scaled)
                best = whole if best is None or whole.misfit < best.misfit else best
                if best.explained:
                    return best, pool.take(members)
        # Every other round starts from nothing, in case what was found is wrong.
        part = pool.take(sets[0] if sets and number % 3 != 2 else [])
        known = part.at.a[: space.rank - 1]
    return best, pool.take(compatible(pool, space.rank)[0] if len(pool) else [])


def solve_jointly(
    space: HeadSpace, supports: Supports, found: FoundSamples, *, scaled: bool = True
) -> Whole:
    """Solve for as many samples as the space has dimensions, from where each was found."""
    starts = [found, *shared_out(space, supports, found, scaled=scaled)]
    best = _solved(space, supports, starts[0], scaled=scaled)
    for start in starts[1:]:
        if best.explained:
            break
        best = min(best, _solved(space, supports, start, scaled=scaled), key=lambda one: one.misfit)
    return best


def _solved(space: HeadSpace, supports: Supports, found: FoundSamples, *, scaled: bool) -> Whole:
    """Return the solution of the joint system that a local search from these samples finds."""
    own = supports.take(found.kind)
    system, x = polish(space, own, biorthogonal(space, found.at, scaled=scaled), scaled=scaled)
    values = system.values(x[None], found.kind[:1])
    return Whole(system, x, float(values.square().mean().sqrt()))
