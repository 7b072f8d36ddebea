"""This module searches clipping, pruning and noise together for the least loss of utility.

Each treatment wants the weakest noise that stops the attacks behind it. A treatment that could only
be worse than the best one so far is not tried: what it leaves of the update is known beforehand.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from softleak.auditing.treatments import TREATMENTS, Treatment
from softleak.auditing.weakest import Search, Stopped


def least_loss(search: Search, treatments: Sequence[Treatment] = TREATMENTS) -> Stopped | None:
    """Return the treatment and the noise that stop everything and leave the most of the update.

    Args:
        search: the search for noise on the share.
        treatments: what may be done to the share before the noise, the first to try first.

    Returns:
        The best that was found; None if nothing that was tried stops the attacks.
    """
    best: Stopped | None = None
    most = 0.0  # the progress that is left behind the best, on average over the noise
    for treatment in treatments:
        tried = treated(search, treatment)
        within = len(tried.grid) if best is None else _better(tried, most)
        # The strongest noise that would still be better is tried first. If the attacks succeed
        # behind it, they do behind all weaker ones.
        if best is not None and (within == 0 or tried.hit(tried.grid[within - 1])):
            continue
        found = tried.weakest(within)
        left = 0.0 if found is None else expected_progress(tried, found.setting)
        if found is not None and (best is None or left > most):
            best, most = found, left
    return best


def treated(search: Search, treatment: Treatment) -> Search:
    """Return the search behind another treatment."""
    return replace(search, treatment=treatment, known={})


def expected_progress(search: Search, setting: float) -> float:
    """Return the progress that is left behind noise of a setting, on average over the noise.

    Noise adds to the length of what is sent, and nothing along the true update.

    Args:
        search: the search, with its treatment.
        setting: the standard deviation of the noise.
    """
    true, left = search.target.share.share, search.prepared
    whole = true.norm()
    along = sum(float((g.double() * left[n].double()).sum()) for n, g in true.items())
    noisy = sum(
        int((g != 0).sum()) if search.treatment.prunes else g.numel() for g in left.values()
    )
    length = math.sqrt(left.norm() ** 2 + setting**2 * noisy)
    return along / (whole * max(whole, length)) if whole > 0 else 0.0


def _better(search: Search, progress: float) -> int:
    """Return how many settings of the grid leave more progress than this, the weakest first."""
    return bisect_left(search.grid, True, key=lambda s: expected_progress(search, s) <= progress)
