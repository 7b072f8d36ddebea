"""What the terminal shows."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text
from torch import Tensor

from softleak.audit import AuditedShare, EmbeddedAudit
from softleak.results import Recovery, Status

SHOWN = 3  # entries of a label
WORTH = 5e-4  # smaller entries are not worth a place
COLOURS = {Status.UNIQUE: "bold red", Status.AMBIGUOUS: "yellow", Status.NO_SOLUTION: "cyan"}


def audit_table(report: EmbeddedAudit) -> Table:
    """One row a share."""
    table = Table(title="What each gradient gave away", caption_justify="left")
    for column in ("kind", "true label", "head alone", "whole share"):
        table.add_column(column)
    table.add_column("L1 error", justify="right")
    for share in report.shares:
        table.add_row(*_row(share, report.class_names))
    table.caption = "evidence: " + "; ".join(report.evidence)
    return table


def closing_words(report: EmbeddedAudit) -> Text:
    """The verdict, in a sentence."""
    exact = sum(share.whole.status is Status.UNIQUE for share in report.shares)
    head = sum(share.head_only.status is Status.UNIQUE for share in report.shares)
    total = len(report.shares)
    worst = max(share.error for share in report.shares)
    pace = 1000 * report.seconds / (2 * total)
    return Text(
        f"{exact} of {total} labels follow uniquely from the gradient ({head} from the head alone, "
        f"assuming a smoothed mix of at most two classes). Largest error {worst:.0e}; "
        f"{pace:.1f} ms a label. The attack saw the model and the gradient, nothing else."
    )


def _row(share: AuditedShare, names: tuple[str, ...]) -> list[Text | str]:
    return [
        share.kind,
        _label(share.y_true, names),
        _status(share.head_only),
        _answer(share.whole, names),
        f"{share.error:.0e}" if share.whole.label is not None else "–",
    ]


def _status(recovery: Recovery) -> Text:
    return Text(recovery.status.name, style=COLOURS.get(recovery.status, ""))


def _answer(recovery: Recovery, names: tuple[str, ...]) -> Text:
    if recovery.status is not Status.UNIQUE or recovery.label is None:
        return _status(recovery)
    return _status(recovery).append(f"  {_label(recovery.label, names)}", style="default")


def _label(y: Tensor, names: tuple[str, ...]) -> str:
    """The largest entries by name, and how many others share the rest."""
    values, indices = y.sort(descending=True)
    shown = [(float(v), names[int(i)]) for v, i in zip(values, indices, strict=True)][:SHOWN]
    level = float(values[-1])
    parts = [f"{name} {value:.4f}" for value, name in shown if value - level > WORTH]
    rest = len(y) - len(parts)
    return ", ".join(parts) + (
        f", {rest} others" if rest > 0 and float(values[len(parts)]) > WORTH else ""
    )
