"""The matrix as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.matrix.networks import NETWORKS
from benchmarks.matrix.run import Cell
from softleak.audit import Leak, State

MARKS = {State.LEAKED: "●", State.NO_SUCCESS: "○", State.NOT_ATTACKED: "·"}


def page(cells: Sequence[Cell], seconds: float) -> str:
    """The page: the legend, the table, and the counts."""
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
        *LEGEND,
        "",
        *_table(cells, networks, kinds),
        "",
        "## Counts",
        "",
        *_counts(cells),
        "",
        *KINDS_IN_WORDS,
    ]
    return "\n".join(lines) + "\n"


def _table(cells: Sequence[Cell], networks: Sequence[str], kinds: Sequence[str]) -> Iterator[str]:
    groups = {network.name: network.group for network in NETWORKS}
    by_place = {(cell.network, cell.kind): cell for cell in cells}
    yield "| | network | " + " | ".join(kinds) + " |"
    yield "|---" * (len(kinds) + 2) + "|"
    for network in networks:
        written = " | ".join(_written(by_place[network, kind]) for kind in kinds)
        yield f"| {groups[network]} | {network} | {written} |"


def _written(cell: Cell) -> str:
    """The verdict on the label, the five states, and a fault in bold."""
    marks = "".join(MARKS[state] for state in cell.states)
    fault = f" **{', '.join(cell.faults)}**" if cell.faults else ""
    return f"{cell.verdict.lower()} {marks}{fault}"


def _counts(cells: Sequence[Cell]) -> Iterator[str]:
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


LEGEND = (
    "Each cell: the verdict on the label, then five marks for label, class, feature, input and",
    "class composition, in this order. A fault would stand beside them in bold.",
    "",
    "| mark | meaning |",
    "|---|---|",
    "| ● | leaked |",
    "| ○ | attacked without success (green on the page) |",
    "| · | not attacked (grey on the page) |",
)
KINDS_IN_WORDS = (
    "## How it is judged",
    "",
    "- *Wrong UNIQUE*: the label is further from the truth than the bound that came with it.",
    "- *Another wrong claim*: a complete set of labels without the true one, a class that is not",
    "  the true one, a class called present that is in no label, counts outside their bounds, a",
    "  feature that is off by more than 1 %, an input called recognisable below 20 dB.",
    "- *Green where something leaks*: the audit says that an attack did not succeed, but the label",
    "  it found is within 0.01 of the truth in L1, or its feature within 1 %, or its image at 20 dB",
    "  or more, or `BatchReader` proves true classes on the same numbers.",
    "- *Green where nothing was tried*: the audit says that an attack did not succeed although none",
    "  applies: a label of one sample in an update of several or in a pattern of signs, classes",
    "  where the head has neither a bias nor features of one sign, an input nobody searched for.",
    "",
    "Labels of single samples are one-hot, smoothed and mixed in turn, those of batches one-hot. The",
    "learning rate is 0.1 (Adam: 0.001). *Delta* is `--kind delta --lr`; *not said* is the same file",
    "without a word about it. *Clipped* is a step whose gradient was clipped to a norm of 0.1, which",
    "the auditor does not know. *Momentum* is the second step of a client whose first was on another",
    "sample. The sizes of batches are told (`--samples`); *5 steps* are local steps on batches of",
    "two. Noise is Gaussian, on every entry, and not declared. Gradients are not matched",
    "(`--match-seconds 0`), so that inputs are attacked in chains only.",
)
