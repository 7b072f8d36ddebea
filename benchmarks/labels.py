"""Part one, labels: the time per label against Algorithms 1 and 2 and one product ``W g``.

It prints ratios and no seconds: `python -m benchmarks.labels`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.cases import Case, smoothed_case
from benchmarks.contestants import (
    AS_PUBLISHED,
    AT_ONCE,
    EVIDENCE,
    FLOOR,
    HEAD_ONLY,
    TENSORS,
    Answer,
    Results,
    contestants,
    extrapolate,
    name_of,
)
from benchmarks.goals import Goal, ratio, run_alone
from benchmarks.timing import Contestant, Timing, race
from softleak import Family, GradientShare, Recovery, Smoothed, recover_labels
from softleak.labels.evidence.relation import Relation

SIZES = ((10, 768), (100, 512), (1000, 2048))
CLIENTS = 256
ROUNDS = 24


def run(console: Console) -> list[Goal]:
    """Time everything, print the tables and return the goals."""
    goals: list[Goal] = []
    for classes, features in SIZES:
        first = (classes, features) == SIZES[0]
        case = smoothed_case(classes, features, CLIENTS if first else ROUNDS)
        kinds = (AS_PUBLISHED, TENSORS, AT_ONCE) if first else (TENSORS, AT_ONCE)
        results = extrapolate(race(contestants(case, kinds), ROUNDS))
        console.print(_table(case, results))
        if first:
            goals += _speed_goals(results)
            console.print(_throughput(case))
    for ours, bound in ((HEAD_ONLY, 60), (EVIDENCE, 20)):
        floor = results[ours].over(results[FLOOR])
        goals.append(Goal(f"{case.name}: {ours} / {FLOOR}", floor, bound, at_least=False))
    return goals


def _table(case: Case, results: Results) -> Table:
    """Return the table of one size of head."""
    table = Table(title=f"Labels, {case.name}: time of a row over that of a column")
    table.add_column("", no_wrap=True)
    for name in (HEAD_ONLY, EVIDENCE, FLOOR, "worst L1", "answered"):
        table.add_column(name, justify="right")
    for name, timing in results.items():
        about = "≈ " if timing.extrapolated else ""
        times = [about + ratio(timing.over(results[base])) for base in (HEAD_ONLY, EVIDENCE, FLOOR)]
        table.add_row(name, *times, *_quality(case, timing))
    table.caption = (
        "Medians of interleaved runs, one thread. Head only and evidence are softleak's. "
        "As published: with that code's loops over entries in Python; with tensors: without them, "
        "one scalar at a time; at once: all particles, with our O(C) evaluation, for information. "
        "≈: extrapolated from a fraction of the first interval to all evaluations of the run "
        "at once, whose error is shown."
    )
    return table


def _quality(case: Case, timing: Timing[Answer]) -> tuple[str, str]:
    """Return the worst L1 error and the number of answers, as text."""
    answers = [a for a in timing.answers if not isinstance(a, Tensor)]
    if not answers:
        return "", ""
    errors = [
        float((answer.label - truth).abs().sum())
        for answer, truth in zip(answers, case.truths, strict=False)
        if answer.label is not None
    ]
    worst = f"{max(errors):.0e}" if errors else "–"
    return worst, f"{len(errors)}/{len(answers)}"


def _speed_goals(results: Results) -> list[Goal]:
    """Return the goals of the speed against both algorithms."""
    wanted = {
        (1, AS_PUBLISHED): 20, (1, TENSORS): 5, (2, AS_PUBLISHED): 1000, (2, TENSORS): 100,
    }  # fmt: skip
    return [
        Goal(
            f"{SIZES[0][0]} classes: {name_of(*baseline)} / {ours}",
            results[name_of(*baseline)].over(results[ours]),
            bound,
        )
        for ours in (HEAD_ONLY, EVIDENCE)
        for baseline, bound in wanted.items()
    ]


def _throughput(case: Case) -> Table:
    """Return the table of labels per second when many clients are attacked at once."""
    table = Table(
        "", "labels per second", title=f"Labels, {case.name}: {CLIENTS} clients in one call"
    )
    table.add_row(HEAD_ONLY, f"{ratio(_gain(case, False, Smoothed()))} those of one at a time")
    table.add_row(EVIDENCE, f"{ratio(_gain(case, case.evidence, None))} those of one at a time")
    return table


def _gain(case: Case, evidence: bool | Sequence[Relation], family: Family | None) -> float:
    """Return the labels per second of one call for all clients, over those of one call each."""

    def recover(shares: Sequence[GradientShare]) -> Sequence[Recovery]:
        return recover_labels(case.model, shares, evidence=evidence, family=family, head=case.head)

    times = race(
        [
            Contestant("all", lambda i: recover(case.shares)),
            Contestant("one", lambda i: recover(case.shares[i : i + 1])),
        ]
    )
    return len(case.shares) * times["one"].over(times["all"])


if __name__ == "__main__":
    run_alone(run)
