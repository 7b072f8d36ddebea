"""This module holds the settings of the search for sparse vectors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DirectionSettings:
    """These are the settings of the search for sparse vectors.

    Attributes:
        scatter_steps: steps of Tyler's estimate.
        rounds: searches, each from new starts away from what was found.
        starts: starts of a search, at least.
        starts_per_missing: starts for each vector that is still missing.
        most_starts: starts of a search, at most.
        thresholds: below which entries, of root mean square one, count as zero while climbing. Odd
            searches leave the first one out: it reaches further, but can lead past a vector.
        climb_steps: steps at each threshold.
        away_steps: steps in which a start of an even search is kept orthogonal to what was found.
        spread: how far an odd search's starts are moved from that complement, at random.
        same: two unit vectors of at least this cosine are one.
        smallest_steps: steps of a first, quick fit to the smallest entries.
        l1_steps: steps of the reweighted fit towards the least sum of absolute entries.
        log_steps: steps of it towards the fewest entries, which make it exact.
        sharpen_part: the part of the entries whose size sets the first weights.
        l1_rate: the factor of that size from step to step, at first.
        log_rate: this factor at last.
        draws: random sets of B − 1 entries, each of whose null vectors is tried where the fit alone
            did not become exact.
        pool: these entries are drawn from so many times B of the smallest.
        drawn_vectors: vectors of one search that are treated so, at most.
        draw_steps: how often: the best null vector of one step is where the next begins.
        judged_part: the best is the one whose entries up to this part are the smallest.
        zero_errors: an entry of so many standard errors or less is zero.
        margin: zeros beyond the B − 1 that any vector can have. A chance zero has a probability of
            about 1e-5, so that eight of them do not happen.
        clear: the second smallest singular value of the zeros' rows, in errors: below it another
            vector vanishes there too, and neither is that of one sample.
        resolved: this value relative to the largest; float64 resolves 1e-8 of it.
        leverage: no single zero may decide a direction by more than this. A mix of two samples
            vanishes where both do and, by choice of the mix, at one more entry, of leverage one.
        seed: the seed of the starts.
    """

    scatter_steps: int = 25
    rounds: int = 24
    starts: int = 16
    starts_per_missing: int = 2
    most_starts: int = 128
    thresholds: tuple[float, ...] = (0.6, 0.3, 0.1)
    climb_steps: tuple[int, ...] = (120, 60, 30)
    away_steps: int = 60
    spread: float = 0.7
    same: float = 0.98
    smallest_steps: int = 3
    l1_steps: int = 24
    log_steps: int = 8
    sharpen_part: float = 0.3
    l1_rate: float = 0.75
    log_rate: float = 0.1
    draws: int = 256
    pool: float = 2.0
    drawn_vectors: int = 8
    draw_steps: int = 4
    judged_part: float = 0.3
    zero_errors: float = 8.0
    margin: int = 8
    clear: float = 64.0
    resolved: float = 1e-6
    leverage: float = 0.98
    seed: int = 0


DIRECTIONS = DirectionSettings()
