"""This module searches the samples of a batch one at a time, and deflates what is found (§9)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.batches.candidates import FoundSamples, distinct
from softleak.batches.head_space import HeadSpace
from softleak.batches.leading import leading_points
from softleak.batches.levenberg import LevenbergSettings, minimise
from softleak.batches.one_sample import SampleSystem
from softleak.batches.rounding import equation_errors, row_errors
from softleak.batches.supports import Supports

SEARCH_STEPS = LevenbergSettings(settled=0.1)


@dataclass(frozen=True)
class SearchSettings:
    """These settings bound the search of one family.

    Attributes:
        rounds: how often the search is repeated in what is left of the space.
        starts: the number of starting points per set of classes.
        first: the number of problems of the first round, as far as ``fewest_starts`` allows. Most
            batches need no more, and later rounds search fewer dimensions.
        fewest_starts: the number of starting points per set of classes in any round.
        problems: the number of problems that are solved at once, at most.
        stretch: the range of factors that starting features are multiplied by.
        scatter: the size of the random part of a starting point, relative to usual features.
        lead: the largest lead of one logit over the others at a starting point.
        surest: the same where rows are levelled, so that fainter samples are told.
        misfit: a solution may miss its equations by so many standard errors.
        faintest: a sample is longer than so many standard errors where rows are levelled.
        negative: no entry of a label may be below minus this.
        seed: the seed of the starting points.
        steps: the settings of each local search. A solution is known by steps that promise to lower
            the cost to nothing; a point whose step promises less than a tenth is left there.
    """

    rounds: int = 6
    starts: int = 24
    first: int = 240
    fewest_starts: int = 8
    problems: int = 4096
    stretch: tuple[float, float] = (0.5, 2.0)
    scatter: float = 0.5
    lead: float = 25.0
    surest: float = 45.0
    misfit: float = 30.0
    faintest: float = 6.0
    negative: float = 1e-4
    seed: int = 0
    steps: LevenbergSettings = SEARCH_STEPS

    def of_round(self, number: int, kinds: int) -> SearchSettings:
        """Return the settings of a round, counted from 0, for so many sets of classes."""
        if number:
            return self
        count = max(self.fewest_starts, self.first // kinds)
        return replace(self, starts=min(self.starts, count))


SAMPLE_SEARCH = SearchSettings()


def explore(
    space: HeadSpace,
    supports: Supports,
    features: Tensor,
    known: Tensor,
    generator: torch.Generator,
    *,
    scaled: bool = True,
    settings: SearchSettings = SAMPLE_SEARCH,
) -> FoundSamples:
    """Return samples of one family that fit the head's gradient, the best first.

    Args:
        space: the factors of the head's gradient.
        supports: the flats that labels may lie on.
        features: (n, I) usual features, from which the search starts.
        known: (N, R) the ``a`` of samples that were found before. Only others are searched.
        generator: the source of the starting points.
        scaled: whether the scale of the share is known.
        settings: how long and how finely is searched.
    """
    system = _deflated(space, supports, known, scaled)
    beta = _starts(system, features, settings, generator)
    kind = torch.arange(len(supports), device=beta.device).repeat(len(beta))
    beta = beta.repeat_interleave(len(supports), 0)
    beta, cost, kind = minimise(system, beta, kind, settings.steps)
    return _fitting(system, FoundSamples(system.point(beta, kind), kind), cost, settings)


def _deflated(space: HeadSpace, supports: Supports, a: Tensor, scaled: bool) -> SampleSystem:
    """Return the system of one more sample, whose ``b`` is orthogonal to every ``a`` found."""
    rows, right = [*a], [0.0] * len(a)
    if space.constraint is not None:
        rows, right = [*rows, space.constraint], [*right, 1.0]
    identity = torch.eye(space.rank, dtype=space.U.dtype, device=space.U.device)
    if not rows:
        return SampleSystem(space, supports, identity, torch.zeros_like(identity[0]), scaled)
    matrix = torch.stack(rows)
    basis = torch.linalg.svd(matrix)[2][len(rows) :].T
    start = torch.linalg.pinv(matrix) @ matrix.new_tensor(right)
    return SampleSystem(space, supports, basis, start, scaled)


def _starts(
    system: SampleSystem, features: Tensor, settings: SearchSettings, generator: torch.Generator
) -> Tensor:
    """Return starting points ``β`` (n, K).

    Half of them are usual features, stretched and scattered. The others give logits in which one
    class leads, by more or less, as those of a trained network do.
    """
    space = system.space
    count = max(1, min(settings.starts, settings.problems // len(system.supports)))
    usual = space.coordinates(features)
    drawn = torch.randint(len(usual), (count,), generator=generator).to(usual.device)
    low, high = settings.stretch
    factor = low + (high - low) * torch.rand(count, 1, generator=generator, dtype=torch.double)
    noise = torch.randn(count, space.rank, generator=generator, dtype=torch.double)
    spread = settings.scatter * usual.abs().mean(0)
    near = usual[drawn] * factor.to(usual.device) + spread * noise.to(usual.device)
    near = (near - system.start) @ system.basis
    leaders = torch.randint(space.classes, (count,), generator=generator)
    lead = settings.surest if space.is_levelled else settings.lead
    leads = lead * torch.rand(count, generator=generator, dtype=torch.double)
    return torch.cat([near, leading_points(system, leaders, leads)])


def _fitting(
    system: SampleSystem, found: FoundSamples, cost: Tensor, settings: SearchSettings
) -> FoundSamples:
    """Return the solutions whose residuals are explained by rounding, the best first."""
    space, at = system.space, found.at
    errors = equation_errors(space, row_errors(space), at.a, at.b, at.p)
    errors = system.error_sizes(errors, found.kind)
    size = at.a.norm(dim=-1)
    allowed = settings.misfit * errors * (1 / size + at.b.norm(dim=-1) / (1 + size))
    product = (at.a * at.b).sum(-1)
    least = settings.faintest if space.is_levelled else settings.misfit
    sizeable = (size > least * errors) | system.open_flats[found.kind]
    fits = (cost.sqrt() < allowed) & sizeable
    fits &= (at.label.amin(-1) > -settings.negative) & (product > 0)
    rows = fits.nonzero()[:, 0]
    # Ill-conditioned points are allowed more, but are not better for it.
    return distinct(found.take(rows[cost[rows].argsort()]))
