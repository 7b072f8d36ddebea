"""What the paper claims, and what the records say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from softleak.experiments.standing import NOT_MEASURED, Found, Judged, Means, Standing

__all__ = ["CLAIMS", "Claim", "Judged", "Means", "Standing"]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and how it is judged.

    Attributes:
        section: where the paper says it.
        text: the sentence, shortened.
        judge: the function that judges it by the means of the records.
    """

    section: str
    text: str
    judge: Callable[[Means], Judged]


def _least(experiment: str, measure: str, wanted: float) -> Callable[[Means], Judged]:
    """Return a judge that wants this success rate in every cell; 100 % in all exceeds the claim."""

    def judge(means: Means) -> Judged:
        found = means.of(experiment, measure)
        if not found.values:
            return NOT_MEASURED
        cell, low = min(found.values.items(), key=lambda item: item[1])
        high = Standing.EXCEEDED if low == 1 else Standing.CONFIRMED
        failed = Standing.REFUTED if low < wanted else None
        return found.judged(failed, high, f"lowest: {low:.1%} ({cell})")

    return judge


def _apart(
    experiment: str, ours: str, other: str, holds: Callable[[float], bool]
) -> Callable[[Means], Judged]:
    """Return a judge of the differences of PSNR between two kinds of cells."""

    def judge(means: Means) -> Judged:
        found = means.gaps(experiment, ours, other)
        if not found.values:
            return NOT_MEASURED
        gaps = found.values.values()
        failed = None if all(map(holds, gaps)) else Standing.REFUTED
        figure = f"{min(gaps):+.2f} to {max(gaps):+.2f} dB"
        return found.judged(failed, Standing.CONFIRMED, figure)

    return judge


def _as_good(means: Means) -> Judged:
    """Judge whether the PSNR of FCN-4 is above the paper's in every cell."""
    found = means.beyond("fcn")
    if not found.values:
        return NOT_MEASURED
    least = min(found.values.values())
    failed = None if least > 0 else Standing.REFUTED
    return found.judged(failed, Standing.EXCEEDED, f"{least:+.1f} dB at least")


def _matching_only(means: Means) -> Judged:
    """Judge the "only": computed inputs that are better than the best matched ones refute it."""
    found = means.beyond("table3", "exact inversion")
    if not found.values:
        return NOT_MEASURED
    least = min(found.values.values())
    every = Standing.REFUTED if least > 0 else Standing.CONFIRMED
    return found.judged(None, every, f"exact inversion {least:+.1f} dB at least")


def _idlg(means: Means) -> Judged:
    """Judge whether iDLG ever fails on one-hot labels."""
    found = means.of("table1", "idlg_exact", "one-hot")
    if not found.values:
        return NOT_MEASURED
    low = min(found.values.values())
    shown = Standing.CONFIRMED if low < 1 else None
    return found.judged(shown, Standing.REFUTED, f"lowest: {low:.1%}")


def _no_prior(means: Means) -> Judged:
    """Judge whether a family is needed: exact inversion gets none, so its labels refute that."""
    found = means.of("table3", "L1", "exact inversion")
    if not found.values:
        return NOT_MEASURED
    worst = max(found.values.values())
    every = Standing.REFUTED if worst < 1e-3 else Standing.CONFIRMED
    return found.judged(None, every, f"without it mean L1 {worst:.0e}")


def _noise(means: Means) -> Judged:
    """Judge whether noise of standard deviation 0.1 hides labels that 0.01 does not."""
    low, high = (means.of("table5", "head_close", level) for level in ("1e-02", "1e-01"))
    if not low.values or not high.values:
        return NOT_MEASURED
    least = [min(found.values.values()) for found in (low, high)]
    every = Standing.CONFIRMED if least[1] < 0.9 else Standing.REFUTED
    both = Found({**low.values, **high.values}, low.cells + high.cells)
    return both.judged(None, every, f"at 1e-2 {least[0]:.0%}, at 1e-1 {least[1]:.0%}")


CLAIMS = (
    Claim("§4.1", "above 95 % on three data sets (Table 1, head only)",
          _least("table1", "head_exact", 0.95)),
    Claim("§4.1", "above 95 % on trained and untrained networks (Table 2, head only)",
          _least("table2", "head_exact", 0.95)),
    Claim("§4.1", "the same, from the whole share", _least("table2", "whole_exact", 0.95)),
    Claim("App. B", "iDLG cannot guarantee 100 % on one-hot labels", _idlg),
    Claim("§3.4", "what is known of the label's distribution is a necessary condition", _no_prior),
    Claim("§4.2", "high-quality images of FCN-4, 51 and 67 dB", _as_good),
    Claim("§4.3", "inputs of a CNN can be approached by gradient matching only", _matching_only),
    Claim("§4.3", "recovered labels serve as well as known ones (to 1 dB)",
          _apart("table3", ", ours", ", GT", lambda gap: gap > -1)),
    Claim("§4.3", "one-hot labels are worse than known ones",
          _apart("table3", ", iDLG", ", GT", lambda gap: gap < 0)),
    Claim("§5.1", "the feature improves the image",
          _apart("table4", "α=0 β=1, ours", "α=1 β=0, ours", lambda gap: gap > 0)),
    Claim("§5.1", "feature and gradient of one layer together are worse than the feature",
          _apart("table4", "α=1 β=1, ours", "α=0 β=1, ours", lambda gap: gap < 0)),
    Claim("§5.2", "accuracy drops harshly at 1e-1 (noise on all, head only)", _noise),
)  # fmt: skip
