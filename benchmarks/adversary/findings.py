"""What failed, the most frequent first, with a few lines of code that show each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from benchmarks.adversary.judge import FAILURES, Outcome
from benchmarks.adversary.run import Alone, Record

SHOWN = (*FAILURES, Outcome.SLOW, Outcome.FALSELY_SEVERAL, Outcome.FALSELY_NONE)


def findings(records: Sequence[Record], seed: int) -> str:
    """Failures grouped by outcome and way (tracebacks by their words), as Markdown."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for one in records:
        if one.outcome in SHOWN:
            what = one.words if one.outcome is Outcome.TRACEBACK else one.way
            groups[one.outcome.value, what].append(one)
        if one.alone is Alone.OTHER:
            groups["another answer alone", one.made].append(one)
        if one.alarm:
            groups["clean share called altered", one.way].append(one)
    rank = {outcome.value: place for place, outcome in enumerate(SHOWN)}
    order = sorted(groups.items(), key=lambda item: (rank.get(item[0][0], 9), -len(item[1])))
    lines = [f"# Findings: {len(records)} recoveries, seed {seed}", ""]
    for (outcome, what), members in order:
        lines += [f"## {len(members)} × {outcome}: {what}", "", *_finding(members, seed), ""]
    return "\n".join(lines)


def _finding(members: Sequence[Record], seed: int) -> Iterator[str]:
    models: dict[str, int] = defaultdict(int)
    for one in members:
        models[f"{one.stranger} [{one.kind}; {one.question}]"] += 1
    common = sorted(models.items(), key=lambda item: -item[1])[:12]
    yield "; ".join(f"{name} {count}" if count > 1 else name for name, count in common)
    yield ""
    one = members[0]
    yield f"L1 error {one.error:.2g}, bound {one.bound:.2g}: {one.words}"
    yield "```python"
    yield "from benchmarks.adversary.ask import Prepared"
    yield "from benchmarks.adversary.subject import find"
    names = f"{one.stranger!r}, {one.way!r}, {one.kind!r}, {one.number}, {seed}"
    yield f"subject, case = find({names})"
    yield f"# {one.question}"
    yield "print(Prepared.of(subject.model, subject.stranger.shape).ask_plainly(case))"
    yield "print(case.made.truth.labels[0])"
    yield "```"
