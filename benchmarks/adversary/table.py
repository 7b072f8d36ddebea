"""The counts as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from benchmarks.adversary.judge import FAILURES, Outcome
from benchmarks.adversary.run import Alone, Record

Key = Callable[[Record], str]


def page(records: Sequence[Record], command: str, models: int, minutes: float) -> str:
    """The whole page: totals, groups of models by groups of ways, and both one by one."""
    lines = [
        "# Results: the adversarial suite",
        "",
        f"`{command}`: {len(records)} recoveries on {models} models that softleak was not tuned "
        f"to, {minutes:.0f} minutes. What the words mean: "
        "[judging](../adversary.md#how-answers-are-judged).",
        "",
        *_totals(records),
        "",
        "## Groups of models by how the share was made",
        "",
        *_cross(records),
        "",
        "## By how the share was made",
        "",
        *_counts(records, lambda one: one.way, "share"),
        "",
        "## By label",
        "",
        *_counts(records, lambda one: one.kind, "label"),
        "",
        "## By model",
        "",
        *_counts(records, lambda one: one.stranger, "model"),
    ]
    return "\n".join(lines) + "\n"


def _totals(records: Sequence[Record]) -> Iterator[str]:
    counts = Counter(one.outcome for one in records)
    yield "| outcome | recoveries |"
    yield "|---|---|"
    for outcome in Outcome:
        mark = "**" if outcome in FAILURES else ""
        yield f"| {mark}{outcome.value}{mark} | {mark}{counts[outcome]}{mark} |"
    clean = [one for one in records if one.clean]
    right = sum(one.outcome is Outcome.RIGHT for one in clean)
    asked = Counter(one.alone for one in records if one.alone is not None)
    covered = [one.covered for one in records if one.covered is not None]
    yield ""
    yield f"Clean shares: {len(clean)}, of which {right} were UNIQUE and right;"
    yield f"{sum(one.alarm for one in clean)} were called altered."
    words = ", ".join(f"{asked[kind]} {kind.value}" for kind in Alone)
    yield f"Asked again, alone and plainly: {asked.total()}: {words}."
    if covered:
        mean = sum(covered) / len(covered)
        yield f"Entries of labels inside their intervals of 90 %: {mean:.1%} of {len(covered)}"
        yield "noisy shares."


def _cross(records: Sequence[Record]) -> Iterator[str]:
    """Each cell: recoveries, UNIQUE and right, and failures if there are any."""
    columns = list(dict.fromkeys(sorted(one.made for one in records)))
    rows = list(dict.fromkeys(one.group for one in records))
    yield "Recoveries / UNIQUE and right / failures (the rows in bold above)."
    yield ""
    yield "| | " + " | ".join(columns) + " | all |"
    yield "|---" * (len(columns) + 2) + "|"
    for row in (*rows, "all"):
        mine = [one for one in records if row in (one.group, "all")]
        cells = [_cell([one for one in mine if one.made == name]) for name in columns]
        yield f"| {row} | " + " | ".join([*cells, _cell(mine)]) + " |"


def _cell(records: Sequence[Record]) -> str:
    right = sum(one.outcome is Outcome.RIGHT for one in records)
    failures = sum(one.outcome in FAILURES for one in records)
    bad = f"**{failures}**" if failures else "0"
    return f"{len(records)} / {right} / {bad}"


def _counts(records: Sequence[Record], key: Key, title: str) -> Iterator[str]:
    held = [outcome for outcome in Outcome if any(one.outcome is outcome for one in records)]
    yield f"| {title} | all | " + " | ".join(outcome.value for outcome in held) + " |"
    yield "|---" * (len(held) + 2) + "|"
    for name in dict.fromkeys(key(one) for one in records):
        counts = Counter(one.outcome for one in records if key(one) == name)
        cells = (_number(counts[outcome], outcome) for outcome in held)
        yield f"| {name} | {counts.total()} | " + " | ".join(cells) + " |"


def _number(count: int, outcome: Outcome) -> str:
    if not count:
        return ""
    return f"**{count}**" if outcome in FAILURES else str(count)
