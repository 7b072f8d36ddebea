"""Lay out an audit for the terminal."""

from __future__ import annotations

import math

from rich.box import SIMPLE_HEAD
from rich.console import Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from softleak.audit.leaks import Leak
from softleak.audit.report import Audit, AuditReport
from softleak.audit.sweeps import WhatIf
from softleak.core.fit import Fit
from softleak.core.vocabulary import State
from softleak.present.fit import in_a_word
from softleak.present.page import chart, charted
from softleak.present.words import (
    VOID,
    classes_in_brief,
    in_a_line,
    in_brief,
    input_in_brief,
    not_attacked,
    summary,
)

TABLE_ROWS = 60  # of many shares the first; the files have all
SCORE_COLUMNS = ("L1", "PSNR")  # columns that are there if the truth is
LABEL_STYLES = {
    "UNIQUE": "bold red",
    "CLASS": "magenta",
    "PROBABLE": "magenta",
    "AMBIGUOUS": "yellow",
    "NOTHING": "cyan",
}


def audit_table(audit: Audit) -> Group:
    """Return a table with one row per share, and notes below, where its width does not cut them."""
    scored = any(report.score for report in audit.reports)
    table = Table(
        title="What each gradient gave away", title_justify="left", box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1), pad_edge=False,
    )  # fmt: skip
    several = any(report.composition.attacked for report in audit.reports)
    names = ["share", "label", "recovered", "feature", "input"]
    names += [*(["classes"] if several else []), *(SCORE_COLUMNS if scored else [])]
    unfit = any(not report.fit.holds for report in audit.reports)
    names += ["fit"] if unfit else []
    rows = [
        [
            *_row(report, audit.class_names),
            *([_cell(report.states[Leak.COMPOSITION], classes_in_brief(report))] * several),
            *_score(report) * scored,
            *[_fit(report.fit)] * unfit,
        ]
        for report in audit.reports[:TABLE_ROWS]
    ]
    for index, name in enumerate(names):
        _add_column(table, name, [row[index].plain for row in rows])
    for row in rows:
        table.add_row(*row)
    hidden = len(audit.reports) - TABLE_ROWS
    notes = [f"{hidden} more rows are in audit.json"] if hidden > 0 else []
    failed = any(State.NO_SUCCESS in report.states.values() for report in audit.reports)
    notes += ["–: this attack did not succeed"] if failed else []
    broken = any(State.CONTRADICTED in report.states.values() for report in audit.reports)
    notes += [f"contradicted: {VOID}"] if broken else []
    notes += [f"evidence: {'; '.join(audit.evidence)}"] if audit.evidence else []
    notes += ["L1 and PSNR: scored against the truth, which no attack saw"] if scored else []
    return Group(table, Text("\n".join([*notes, *audit.remarks]), style="table.caption"))


def _add_column(table: Table, name: str, cells: list[str]) -> None:
    """Add a column that is at least as wide as its longest word; names and labels may break."""
    if name in ("share", "recovered"):
        table.add_column(name, overflow="fold")
        return
    longest = max(len(word) for cell in (name, *cells) for word in cell.split())
    justify: JustifyMethod = "left" if name == "label" else "right"
    style = "dim" if name in SCORE_COLUMNS else ""
    table.add_column(name, justify=justify, min_width=longest, header_style=style)


def refusal_table(audit: Audit) -> Table:
    """Return a table of the files that could not be audited, and why."""
    count = len(audit.refused)
    title = "1 file was not audited" if count == 1 else f"{count} files were not audited"
    table = Table(title=title, title_justify="left")
    table.add_column("file", overflow="fold")
    table.add_column("reason", overflow="fold")
    for refusal in audit.refused[:TABLE_ROWS]:
        table.add_row(Text(refusal.name), Text(refusal.reason))
    return table


def what_if_table(tried: WhatIf) -> Table:
    """Return a table that says, per defence, from which setting on each attack failed."""
    table = Table(
        title="What would stop it", title_justify="left", box=SIMPLE_HEAD, caption_justify="left",
        caption=f"Tried on {tried.shares} updates, with {tried.seeds} seeds per random defence. A "
        "setting is the weakest one tried from which on no trial succeeded; another attack may "
        "still succeed. Right though not claimed are labels of which the attack cannot be sure.",
    )  # fmt: skip
    for column in ("defence", *(leak.value for leak in charted())):
        table.add_column(column, overflow="fold")
    for response in tried.responses:
        name = f"{response.name}, {response.setting}" if response.unit else response.name
        cells = chart(response)["cells"]
        table.add_row(name, *(Text(c["words"], "cyan" if c["stopped"] else "red") for c in cells))
    return table


def closing_words(audit: Audit) -> Text:
    """Return the verdict in a few sentences."""
    if not audit.reports:
        return Text(summary(audit))
    labels = sum(report.label.seconds for report in audit.reports)
    inputs = sum(report.input.seconds for report in audit.reports)
    pace = f" Each label took {1000 * labels / len(audit.reports):.1f} ms"
    pace += f", all inputs together {inputs:.0f} s." if inputs else "."
    ending = " The attack saw the model and the update, and nothing else."
    return Text(f"{summary(audit)}{not_attacked(audit)}{pace}{ending}")


NOT_ATTACKED = Text("not attacked", style="bright_black")
CONTRADICTED = Text("contradicted", style="yellow")


def _row(report: AuditReport, names: tuple[str, ...]) -> list[Text]:
    proved, states = report.label.proved, report.states
    label, found = Text(proved, style=LABEL_STYLES[proved]), report.samples
    if found.attacked:
        style = "bold red" if found.proved else "cyan"
        label = Text(f"{len(found.proved)} of {found.size}", style)
    if report.refuted or states[Leak.LABEL] is State.NOT_ATTACKED:
        label = CONTRADICTED if report.refuted else NOT_ATTACKED
    return [
        Text(report.name),
        label,
        Text(in_brief(report, names, in_a_line)),
        _cell(states[Leak.FEATURE], _feature(report)),
        _cell(states[Leak.INPUT], input_in_brief(report)),
    ]


def _feature(report: AuditReport) -> str:
    """Return how exactly the feature is known; of several samples, how many are."""
    found = report.samples
    return f"{found.features} of {found.size}" if found.attacked else f"±{report.feature.error:.0e}"


def _score(report: AuditReport) -> list[Text]:
    score = report.score
    error, psnr = (None, None) if score is None else (score.label_error, score.psnr)
    return [
        Text("–" if error is None or not math.isfinite(error) else f"{error:.0e}", style="dim"),
        Text("–" if psnr is None else f"{psnr:.0f} dB", style="dim"),
    ]


def _fit(fit: Fit) -> Text:
    """Return what the update contradicts, or what explains it."""
    return Text(in_a_word(fit) or "holds", style="" if fit.holds else "yellow")


def _cell(state: State, leaked: str) -> Text:
    """Return what leaked, a dash if the attack failed, or in grey that there was no attack."""
    if state is State.CONTRADICTED:
        return CONTRADICTED
    if not state.attacked:
        return NOT_ATTACKED
    return Text(leaked if state is State.LEAKED else "–")
