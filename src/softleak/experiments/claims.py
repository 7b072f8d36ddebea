"""What the paper claims, and what the records say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from statistics import fmean

from softleak.experiments.registry import EXPERIMENTS
from softleak.sweep import Records, numbers


class Standing(Enum):
    """What became of a claim."""

    CONFIRMED = "confirmed"
    EXCEEDED = "exceeded"
    REFUTED = "refuted"
    OPEN = "not measured yet"


@dataclass(frozen=True)
class Means:
    """Means of measures, by cell."""

    records: Records

    def of(self, experiment: str, measure: str, *words: str) -> dict[str, float]:
        """Of the cells whose names hold all words and that have been run."""
        found = {}
        for cell in EXPERIMENTS[experiment].cells:
            if not all(word in cell.name for word in words):
                continue
            values = numbers(self.records.of(experiment, cell.name), measure)
            if values:
                found[cell.name] = fmean(values)
        return found

    def gaps(self, experiment: str, measure: str, ours: str, other: str) -> list[float]:
        """How far cells named ``ours`` are above those named ``other``, all else equal."""
        means = self.of(experiment, measure)
        pairs = ((name, name.removesuffix(ours) + other) for name in means if name.endswith(ours))
        return [means[a] - means[b] for a, b in pairs if b in means]


Judged = tuple[Standing, str]  # with the figure


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper's, shortened, and how it is judged."""

    section: str
    text: str
    judge: Callable[[Means], Judged]


OPEN: Judged = (Standing.OPEN, "")


def _least(experiment: str, measure: str, wanted: float) -> Callable[[Means], Judged]:
    """Every cell's share of successes is at least so high; exceeded if all are whole."""

    def judge(means: Means) -> Judged:
        found = means.of(experiment, measure)
        if not found:
            return OPEN
        cell, low = min(found.items(), key=lambda item: item[1])
        high = Standing.EXCEEDED if low == 1 else Standing.CONFIRMED
        return high if low >= wanted else Standing.REFUTED, f"lowest: {low:.1%} ({cell})"

    return judge


def _apart(
    experiment: str, ours: str, other: str, holds: Callable[[list[float]], bool]
) -> Callable[[Means], Judged]:
    """The differences of PSNR between two kinds of cells are as claimed."""

    def judge(means: Means) -> Judged:
        gaps = means.gaps(experiment, "PSNR", ours, other)
        if not gaps:
            return OPEN
        figure = f"{min(gaps):+.2f} to {max(gaps):+.2f} dB in {len(gaps)} cells"
        return Standing.CONFIRMED if holds(gaps) else Standing.REFUTED, figure

    return judge


def _beyond(experiment: str, *words: str) -> Callable[[Means], Judged]:
    """PSNR is above the paper's in every cell."""

    def judge(means: Means) -> Judged:
        found = means.of(experiment, "PSNR", *words)
        paper = {n: EXPERIMENTS[experiment].cell(n).paper.get("PSNR") for n in found}
        gaps = [found[n] - value for n, value in paper.items() if value is not None]
        if not gaps:
            return OPEN
        figure = f"{min(gaps):+.1f} dB at least"
        return Standing.EXCEEDED if min(gaps) > 0 else Standing.REFUTED, figure

    return judge


def _idlg(means: Means) -> Judged:
    found = means.of("table1", "idlg_exact")
    if not found:
        return OPEN
    low = min(found.values())
    return Standing.CONFIRMED if low < 1 else Standing.REFUTED, f"lowest: {low:.1%}"


def _no_prior(means: Means) -> Judged:
    """The exact cells are given no family: a label they find refutes that one is needed."""
    found = means.of("table3", "L1", "exact inversion")
    if not found:
        return OPEN
    worst = max(found.values())
    return Standing.REFUTED if worst < 1e-3 else Standing.CONFIRMED, f"mean L1 {worst:.0e} without"


def _noise(means: Means) -> Judged:
    low, high = (means.of("table5", "head_close", level) for level in ("1e-02", "1e-01"))
    if not low or not high:
        return OPEN
    figure = f"at 1e-2 {min(low.values()):.0%}, at 1e-1 {min(high.values()):.0%}"
    return Standing.CONFIRMED if min(high.values()) < 0.9 else Standing.REFUTED, figure


CLAIMS = (
    Claim("§4.1", "above 95 % on three data sets (Table 1, head only)",
          _least("table1", "head_exact", 0.95)),
    Claim("§4.1", "above 95 % on trained and untrained networks (Table 2, head only)",
          _least("table2", "head_exact", 0.95)),
    Claim("§4.1", "the same, from the whole share", _least("table2", "whole_exact", 0.95)),
    Claim("App. B", "iDLG cannot guarantee 100 % on one-hot labels", _idlg),
    Claim("§3.4", "what is known of the label's distribution is a necessary condition", _no_prior),
    Claim("§4.2", "high-quality images of FCN-4, 51 and 67 dB", _beyond("fcn", "fcn4")),
    Claim("§4.3", "inputs of a CNN can be approached by gradient matching only",
          _beyond("table3", "exact inversion")),
    Claim("§4.3", "recovered labels serve as well as known ones (to 1 dB)",
          _apart("table3", ", ours", ", GT", lambda gaps: min(gaps) > -1)),
    Claim("§4.3", "one-hot labels fail", _apart("table3", ", iDLG", ", GT",
                                                lambda gaps: max(gaps) < 0)),
    Claim("§5.1", "the feature improves the image",
          _apart("table4", "α=0 β=1, ours", "α=1 β=0, ours", lambda gaps: min(gaps) > 0)),
    Claim("§5.1", "feature and gradient of one layer together are worse than the feature",
          _apart("table4", "α=1 β=1, ours", "α=0 β=1, ours", lambda gaps: max(gaps) < 0)),
    Claim("§5.2", "accuracy drops harshly at 1e-1 (noise on all, head only)", _noise),
)  # fmt: skip
