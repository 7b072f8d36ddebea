"""This module writes the paper's tables with ours beside them, as Markdown and as a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from softleak._version import __version__
from softleak.atomic import write_text
from softleak.errors import FileError
from softleak.experiments.claims import CLAIMS, Claim, Means, Standing
from softleak.experiments.facts import FACTS
from softleak.experiments.paper_tables import EXPERIMENTS
from softleak.experiments.summary import Entry, Table, Verdict, tabulated
from softleak.report.page import fill
from softleak.sweep import Records

MARKS = {Verdict.BETTER: "▲", Verdict.EQUAL: "=", Verdict.WORSE: "▼", Verdict.NONE: ""}
BEGIN, END = "<!-- softleak reproduce: begin -->", "<!-- softleak reproduce: end -->"
LEGEND = "▲ better than the paper, = equal as written, ▼ worse; in brackets the paper's value."

SCORED = (
    "Every sample is counted. No attack sees the truth, except in the column GT, which is given "
    "the true label; elsewhere the truth is read afterwards, to score. L1 columns are means over "
    "the labels that were recovered, as in the paper; an input that was not found counts as the "
    "data set's mean image."
)


@dataclass(frozen=True)
class Results:
    """This holds everything that the records of a folder say."""

    tables: tuple[Table, ...]
    claims: tuple[tuple[Claim, Standing, str], ...]

    @classmethod
    def of(cls, records: Records) -> Results:
        """Return the tables that have rows, and every claim."""
        tables = (table for e in EXPERIMENTS.values() for table in tabulated(e, records))
        means = Means(records)
        claims = tuple((claim, *claim.judge(means)) for claim in CLAIMS)
        return cls(tuple(tables), claims)


def markdown(results: Results) -> str:
    """Return the results as Markdown."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Results) -> Iterator[str]:
    yield f"By softleak {__version__}. {LEGEND}\n\n{SCORED}"
    for table in results.tables:
        yield f"\n### {table.title}\n"
        yield f"| cell | {' | '.join(table.columns)} | note |"
        yield "|---" * (len(table.columns) + 2) + "|"
        for row in table.rows:
            yield f"| {row.cell} | {' | '.join(map(written, row.entries))} | {row.note} |"
    yield "\n### The paper's claims\n\n| where | claim | here | figure |\n|---|---|---|---|"
    for claim, standing, figure in results.claims:
        yield f"| {claim.section} | {claim.text} | {standing.value} | {figure} |"
    yield "\n### Where the paper's text and its published code differ\n"
    yield from (f"- {fact}" for fact in FACTS)


def written(entry: Entry) -> str:
    """Return our value, the verdict, and the paper's value in brackets."""
    if entry.verdict is Verdict.NONE:
        return entry.ours
    return f"{entry.ours} {MARKS[entry.verdict]} ({entry.paper})"


def write_results(folder: Path, results: Results) -> None:
    """Write ``RESULTS.md`` and ``index.html``, each whole or not at all.

    Args:
        folder: where they go; figures that are there already are shown.
        results: the tables and claims.
    """
    write_text(folder / "RESULTS.md", f"# The paper's tables\n\n{markdown(results)}")
    page = fill(
        "results.html", results=results, facts=FACTS, pictures=_pictures(folder), legend=LEGEND,
        scored=SCORED, marks=MARKS,
    )  # fmt: skip
    write_text(folder / "index.html", page)


def _pictures(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("figure?.png"))


def splice(path: Path, results: Results) -> None:
    """Write the results between the two marks of a Markdown file."""
    before, after = around(path)
    write_text(path, f"{before}{BEGIN}\n{markdown(results)}{END}{after}")


def around(path: Path) -> tuple[str, str]:
    """Return what is before and after the two marks of a Markdown file."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise FileError(f"expected a Markdown file at {path}: {error}") from error
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise FileError(f"expected {BEGIN} and {END} in {path}, to put the results between them")
    return before, after
