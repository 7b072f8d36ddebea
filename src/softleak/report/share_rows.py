"""This module prepares the table of all shares: a row each, with what it is sorted by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softleak.auditing.reports import AuditReport
from softleak.auditing.severity import Severity, severity_of_share
from softleak.auditing.text_leak import known_words
from softleak.auditing.verdict_text import in_brief
from softleak.auditing.wording import in_a_line, written
from softleak.vocabulary import Leak, State

NOT_RANKED = -1e9  # sorts what did not leak behind everything that did


@dataclass(frozen=True, eq=False)
class ShareRow:
    """This is one share in the table.

    Attributes:
        id: where the share is shown in full, or nothing.
        report: what was found.
        severity: how bad it is.
        short: the label in a few words.
        feature: the relative error of the feature.
        input: how good the input is.
        composition: how many classes are proved.
        leaks: the words that the filter knows, with spaces between them.
    """

    id: str
    report: AuditReport
    severity: Severity
    short: str
    feature: str
    input: str
    composition: str
    leaks: str

    @property
    def feature_value(self) -> float:
        """Return what features are sorted by: the better known, the larger."""
        return -self.report.feature.error if self.report.feature.proved else NOT_RANKED

    @property
    def input_value(self) -> float:
        """Return what inputs are sorted by: the quality in dB."""
        quality = self.report.input.quality
        return round(quality, 2) if self.report.shows_input and quality > NOT_RANKED else NOT_RANKED


def share_row(report: AuditReport, identity: str, names: Sequence[str]) -> ShareRow:
    """Prepare the row of one share.

    Args:
        report: what the audit found.
        identity: the id of its section, or nothing if it has none.
        names: the names of the classes, or nothing.
    """
    found = report.input
    exact = found.psnr_predicted is not None and found.leaked
    shown = f"{found.psnr_predicted:.0f} dB" if exact else "recognisable"
    return ShareRow(
        identity,
        report,
        severity_of_share(report),
        in_brief(report, names, in_a_line),
        f"±{written(report.feature.error)}",
        known_words(found.text) if found.text else shown,
        f"{len(report.composition.present) or 1} proved",
        " ".join(_words(report)),
    )


def _words(report: AuditReport) -> list[str]:
    """Return what the filter can ask for."""
    said = [leak.value for leak in Leak if leak in report.leaks]
    untried = State.NOT_ATTACKED in report.states.values()
    return [*(said or ["quiet"]), *(["untried"] if untried else [])]
