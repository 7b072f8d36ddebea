"""Write the matrix as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.matrix.networks import NETWORKS
from benchmarks.matrix.run import Cell
from benchmarks.matrix.words import JUDGING, LEGEND
from softleak.audit import Leak, State

MARKS = {State.LEAKED: "●", State.NO_SUCCESS: "○", State.NOT_ATTACKED: "·"}


def page(cells: Sequence[Cell], seconds: float) -> str:
    """Return the page with the legend, the table and the counts."""
    networks = list(dict.fromkeys(cell.network for cell in cells))
    kinds = list(dict.fromkeys(cell.kind for cell in cells))
    lines = [
        "# The matrix",
        "",
        f"What [the audit](audit.md) says of {len(kinds)} kinds of update of {len(networks)} "
        "networks, made with torch's own optimisers and judged against the truth, which the audit "
        "is not given.",
        "",
        "```console",
        "$ python -m benchmarks.matrix --out docs/matrix.md",
        "```",
        "",
        f"It took {seconds / 60:.1f} minutes of one core.",
        "",
        LEGEND,
        *_table(cells, networks, kinds),
        "",
        "## Counts",
        "",
        *_counts(cells),
        "",
        JUDGING,
    ]
    return "\n".join(lines)


def _table(cells: Sequence[Cell], networks: Sequence[str], kinds: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the table."""
    groups = {network.name: network.group for network in NETWORKS}
    by_place = {(cell.network, cell.kind): cell for cell in cells}
    yield "| | network | " + " | ".join(kinds) + " |"
    yield "|---" * (len(kinds) + 2) + "|"
    for network in networks:
        written = " | ".join(_written(by_place[network, kind]) for kind in kinds)
        yield f"| {groups[network]} | {network} | {written} |"


def _written(cell: Cell) -> str:
    """Return a cell as text: the verdict on the label, the five states, and faults in bold."""
    marks = "".join(MARKS[state] for state in cell.states)
    fault = f" **{', '.join(cell.faults)}**" if cell.faults else ""
    return f"{cell.verdict.lower()} {marks}{fault}"


def _counts(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the lines of both tables of counts."""
    verdicts = Counter(cell.verdict for cell in cells)
    yield "| what | cells |"
    yield "|---|---|"
    yield f"| all | {len(cells)} |"
    for verdict in ("UNIQUE", "CLASS", "PROBABLE", "AMBIGUOUS", "NOTHING"):
        yield f"| {verdict} | {verdicts[verdict]} |"
    yield f"| **wrong UNIQUE** | **{sum(cell.wrong_unique for cell in cells)}** |"
    yield f"| **another claim that is wrong** | **{sum(bool(cell.wrong) for cell in cells)}** |"
    green = sum(bool(cell.green) for cell in cells)
    yield f"| **green where something leaks or nothing was tried** | **{green}** |"
    yield ""
    yield "| | leaked ● | attacked without success ○ | not attacked · |"
    yield "|---|---|---|---|"
    for place, leak in enumerate(Leak):
        states = Counter(cell.states[place] for cell in cells)
        yield f"| {leak.value} | " + " | ".join(str(states[state]) for state in MARKS) + " |"
