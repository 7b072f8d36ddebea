"""This module says how bad a finding is, by the worst that was recovered."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from softleak.auditing.findings import LabelLeak
from softleak.auditing.reports import Audit, AuditReport
from softleak.vocabulary import Leak


class Severity(Enum):
    """These are the degrees of severity, the worst first. The value is what a report prints."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NOT_KNOWN = "not known"
    NONE_FOUND = "none found"

    @property
    def rank(self) -> int:
        """Return a number that is larger the worse it is."""
        return len(Severity) - list(Severity).index(self)

    @property
    def slug(self) -> str:
        """Return the name as a page's classes write it."""
        return self.name.lower().replace("_", "-")

    @property
    def meaning(self) -> str:
        """Return in a phrase what was recovered."""
        return _MEANING[self]


_MEANING = {
    Severity.CRITICAL: "an input, or a part of one, was recovered",
    Severity.HIGH: "the label, or the feature before the last layer, was recovered",
    Severity.MEDIUM: "classes were recovered",
    Severity.LOW: "the label was narrowed down to a set",
    Severity.NOT_KNOWN: "nothing was recovered, but not everything was attacked",
    Severity.NONE_FOUND: "no attack of this audit succeeded; another may",
}
_OF_LEAK = {
    Leak.INPUT: Severity.CRITICAL,
    Leak.LABEL: Severity.HIGH,
    Leak.FEATURE: Severity.HIGH,
    Leak.CLASS: Severity.MEDIUM,
    Leak.COMPOSITION: Severity.MEDIUM,
}


def severity_of_leak(leak: Leak) -> Severity:
    """Return how bad it is that this kind of leak was found."""
    return _OF_LEAK[leak]


def severity_of_share(report: AuditReport) -> Severity:
    """Return the worst that was found in one share."""
    found = [_OF_LEAK[leak] for leak in report.leaks]
    if found:
        return worst(found)
    if report.label.leak is LabelLeak.AMBIGUOUS:
        return Severity.LOW
    return Severity.NOT_KNOWN if report.unattacked - _implied(report) else Severity.NONE_FOUND


def severity_of_audit(audit: Audit) -> Severity:
    """Return the worst that was found in any share. Files that were refused are not known."""
    found = [severity_of_share(report) for report in audit.reports]
    return worst([*found, *([Severity.NOT_KNOWN] if audit.refused or not found else [])])


def worst(severities: Iterable[Severity]) -> Severity:
    """Return the worst of some severities."""
    return max(severities, key=lambda severity: severity.rank)


def _implied(report: AuditReport) -> frozenset[Leak]:
    """Return the composition where the label of one sample was attacked, which would tell it."""
    return frozenset({Leak.COMPOSITION}) if report.alone else frozenset()
