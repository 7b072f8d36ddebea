"""What the terminal shows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from softleak.audit import Audit, AuditReport, LabelLeak, Leak, State
from softleak.audit.rates import WhatIf
from softleak.audit.verdict import not_attacked, summary
from softleak.audit.words import in_a_line, in_brief
from softleak.experiments import Omission, Verdict
from softleak.experiments import Table as Results
from softleak.report.chart import chart
from softleak.report.results import LEGEND, written

ROWS = 60  # of many shares the first; the files have all
STYLES = {
    LabelLeak.UNIQUE: "bold red",
    LabelLeak.CLASS: "magenta",
    LabelLeak.PROBABLE: "magenta",
    LabelLeak.AMBIGUOUS: "yellow",
    LabelLeak.NOTHING: "cyan",
}


def audit_table(audit: Audit) -> Table:
    """One row a share."""
    scored = any(report.score for report in audit.reports)
    table = Table(
        title="What each gradient gave away", title_justify="left", caption_justify="left",
        box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False,
    )  # fmt: skip
    table.add_column("share", overflow="fold", min_width=11)
    table.add_column("label", no_wrap=True)
    table.add_column("recovered", overflow="fold", min_width=16)
    several = any(report.composition.attacked for report in audit.reports)
    for column in ("feature", "input", *(("classes",) if several else ())):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("L1", "PSNR") if scored else ():
        table.add_column(column, justify="right", no_wrap=True, header_style="dim")
    for report in audit.reports[:ROWS]:
        row = _row(report, audit.class_names)
        row += [_composition(report)] if several else []
        table.add_row(*row, *(_score(report) if scored else ()))
    hidden = len(audit.reports) - ROWS
    more = [f"{hidden} more rows are in audit.json"] if hidden > 0 else []
    known = [f"evidence: {'; '.join(audit.evidence)}"] if audit.evidence else []
    truth = ["L1 and PSNR: scored against the truth, which no attack saw"] if scored else []
    table.caption = "\n".join(more + known + truth + list(audit.remarks))
    return table


def refusal_table(audit: Audit) -> Table:
    """The files that could not be audited, and why."""
    table = Table(title=f"{len(audit.refused)} files refused", title_justify="left")
    table.add_column("file", overflow="fold")
    table.add_column("reason", overflow="fold")
    for refusal in audit.refused[:ROWS]:
        table.add_row(Text(refusal.name), Text(refusal.reason))
    return table


def what_if_table(tried: WhatIf) -> Table:
    """Where each attack ends, by defence."""
    table = Table(
        title="What would stop it", title_justify="left", box=SIMPLE_HEAD, caption_justify="left",
        caption=f"{tried.shares} shares, {tried.seeds} seeds of what is random; as far as settings "
        "were tried; another attack may do better",
    )  # fmt: skip
    for column in ("defence", "label", "class", "input"):
        table.add_column(column, overflow="fold")
    for row in map(chart, tried.responses):
        name = f"{row.response.name}, {row.response.unit}".removesuffix(", ")
        table.add_row(name, *(Text(c.words, "cyan" if c.stopped else "red") for c in row.cells))
    return table


def closing_words(audit: Audit) -> Text:
    """The verdict, in a sentence or two."""
    labels = sum(report.label.seconds for report in audit.reports)
    inputs = sum(report.input.seconds for report in audit.reports)
    pace = f" Labels took {1000 * labels / max(len(audit.reports), 1):.1f} ms each"
    pace += f", inputs {inputs:.0f} s together." if inputs else "."
    ending = " The attack saw the model and the gradient, nothing else."
    return Text(f"{summary(audit)}{not_attacked(audit)}{pace}{ending}")


UNTRIED = Text("not attacked", style="bright_black")


def _row(report: AuditReport, names: tuple[str, ...]) -> list[Text]:
    leak, states = report.label.leak, report.states
    label = Text(leak.name, style=STYLES[leak])
    image = report.input.psnr_predicted if report.input.leaked else None
    shown = f"{image:.0f} dB" if image is not None else "recognisable"
    return [
        Text(report.name),
        UNTRIED if states[Leak.LABEL] is State.NOT_ATTACKED else label,
        Text(in_brief(report, names, in_a_line)),
        _cell(states[Leak.FEATURE], f"±{report.feature.error:.0e}"),
        _cell(states[Leak.INPUT], shown),
    ]


def _composition(report: AuditReport) -> Text:
    count = len(report.composition.present) or 1
    return _cell(report.states[Leak.COMPOSITION], f"{count} proved")


def _score(report: AuditReport) -> list[Text]:
    score = report.score
    error, psnr = (None, None) if score is None else (score.label_error, score.psnr)
    return [
        Text("–" if error is None else f"{error:.0e}", style="dim"),
        Text("–" if psnr is None else f"{psnr:.0f} dB", style="dim"),
    ]


def _cell(state: State, leaked: str) -> Text:
    """What leaked, a dash for what was attacked in vain, and in grey what was not attacked."""
    if state is State.NOT_ATTACKED:
        return UNTRIED
    return Text(leaked if state is State.LEAKED else "–")


VERDICTS = {
    Verdict.BETTER: "green",
    Verdict.EQUAL: "cyan",
    Verdict.WORSE: "bold red",
    Verdict.NONE: "",
}


def results_table(results: Results) -> Group:
    """A table of the paper's: ours, and the paper's in brackets, coloured by which is better.

    The page has every column; here there is room for those the paper has, too. Notes stand below,
    where the table's width does not cut them.
    """
    compared = [
        any(entry.verdict is not Verdict.NONE for entry in column)
        for column in zip(*(row.entries for row in results.rows), strict=True)
    ]
    shown = compared if any(compared) else [True] * len(compared)
    said = dict.fromkeys(row.note for row in results.rows if row.note)
    notes = {note: f"[{i}]" for i, note in enumerate(said, 1)}
    caption = [LEGEND, *(f"{mark} {note}" for note, mark in notes.items())]
    table = Table(
        title=results.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0),
        pad_edge=False,
    )  # fmt: skip
    table.add_column("cell", overflow="fold")
    for column in compress(results.columns, shown):
        table.add_column(column, justify="right")
    table.add_column("note", style="dim", no_wrap=True)
    for row in results.rows:
        entries = [
            Text(written(entry), style=VERDICTS[entry.verdict])
            for entry in compress(row.entries, shown)
        ]
        table.add_row(row.cell, *entries, Text(notes.get(row.note, "")))
    return Group(table, Text("\n".join(caption)))


def omission_table(omitted: Sequence[Omission]) -> Table:
    """Cells that were not run, and what they need."""
    table = Table(title="Not run", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    for column in ("cell", "needs, in --data or --weights"):
        table.add_column(column, overflow="fold")
    for omission in omitted:
        table.add_row(f"{omission.experiment}: {omission.cell}", omission.lacking)
    return table
