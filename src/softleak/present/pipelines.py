"""Files for pipelines: JUnit XML with a case per leak, and SARIF 2.1.0 with a rule per leak."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from softleak._version import __version__
from softleak.audit.leaks import Leak, Severity
from softleak.audit.report import Audit, AuditReport
from softleak.core.vocabulary import State
from softleak.io.atomic import write_text
from softleak.present.words import headline

UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML has none


def write_junit(path: Path, audit: Audit, gates: frozenset[Leak]) -> None:
    """Write the findings as JUnit XML, whole or not at all.

    Args:
        path: the file to write.
        audit: what was found.
        gates: the kinds of leak that ``--fail-on`` names; if there are none, every kind is a test
            and what was not attacked is skipped.
    """
    write_text(path, junit(audit, gates))


def junit(audit: Audit, gates: frozenset[Leak] = frozenset()) -> str:
    """Return the findings as JUnit XML."""
    kinds = [leak for leak in Leak if leak in gates or not gates]
    cases = [_case(r, leak, bool(gates)) for r in audit.reports for leak in kinds]
    cases += [_refused(refusal.name, refusal.reason) for refusal in audit.refused]
    counts = {name: str(sum(c.find(tag) is not None for c in cases)) for name, tag in _TAGS.items()}
    time = f"{sum(report.seconds for report in audit.reports):.3f}"
    totals = {"name": "softleak audit", "tests": str(len(cases)), **counts, "time": time}
    root = ET.Element("testsuites", totals)
    stamp = {"timestamp": audit.provenance.date[:19]} if audit.provenance.date else {}
    suite = ET.SubElement(root, "testsuite", {**totals, **stamp})
    suite.extend(cases)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


_TAGS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def _case(report: AuditReport, leak: Leak, gated: bool) -> ET.Element:
    """Return one test case; what a gate names and was not attacked is an error, as exit code 5."""
    case = ET.Element("testcase", {"classname": _printable(report.name), "name": leak.value})
    case.set("time", f"{report.seconds if leak is Leak.LABEL else 0:.3f}")
    state, words = report.states[leak], _printable(headline(report))
    if state is State.LEAKED:
        kind = leak.severity.value
        made = ET.SubElement(case, "failure", {"message": f"{leak.value} leaked", "type": kind})
        made.text = words
    elif state is State.NOT_ATTACKED and gated:
        ET.SubElement(case, "error", {"message": "not attacked", "type": "not attacked"})
    elif state is State.NOT_ATTACKED:
        ET.SubElement(case, "skipped", {"message": "not attacked: nothing is known"})
    return case


def _refused(name: str, reason: str) -> ET.Element:
    case = ET.Element("testcase", {"classname": _printable(name), "name": "read", "time": "0"})
    ET.SubElement(case, "error", {"message": _printable(reason), "type": "refused"})
    return case


def _printable(text: str) -> str:
    return UNPRINTABLE.sub("�", text)


SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {
    Severity.CRITICAL: "error", Severity.HIGH: "error", Severity.MEDIUM: "warning",
    Severity.LOW: "note",
}  # fmt: skip
SCORES = {
    Severity.CRITICAL: "9.5", Severity.HIGH: "8.0", Severity.MEDIUM: "5.5", Severity.LOW: "2.0",
}  # fmt: skip
# In SARIF "open" says that nobody can tell, which is not "pass".
KIND_OF_STATE = {State.LEAKED: "fail", State.NO_SUCCESS: "pass", State.NOT_ATTACKED: "open"}


def write_sarif(path: Path, audit: Audit) -> None:
    """Write the findings as SARIF, whole or not at all.

    Args:
        path: the file to write.
        audit: what was found.
    """
    write_text(path, json.dumps(sarif(audit), indent=1, allow_nan=False) + "\n")


def sarif(audit: Audit) -> dict[str, Any]:
    """Return the findings as a SARIF log of one run."""
    invocation: dict[str, Any] = {"executionSuccessful": not audit.refused}
    if audit.provenance.command:
        invocation["commandLine"] = audit.provenance.command
    if audit.provenance.date:
        invocation["endTimeUtc"] = audit.provenance.date.replace("+00:00", "Z")
    if audit.refused:
        invocation["toolExecutionNotifications"] = [
            {
                "level": "error",
                "message": {"text": f"{refusal.name}: {refusal.reason}"},
                "locations": [_location(refusal.name)],
            }
            for refusal in audit.refused
        ]
    driver = {
        "name": "softleak",
        "version": __version__,
        "semanticVersion": __version__,
        "rules": [_rule(leak) for leak in Leak],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": [result for report in audit.reports for result in _results(report)],
    }
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(leak: Leak) -> dict[str, Any]:
    severity = leak.severity
    return {
        "id": f"softleak/{leak.value}",
        "name": f"{leak.value.capitalize()}Leak",
        "shortDescription": {"text": f"An update gives away its {leak.short}."},
        "fullDescription": {"text": f"It counts as leaked if: {leak.counts_if}."},
        "defaultConfiguration": {"level": LEVELS[severity]},
        "properties": {"security-severity": SCORES[severity], "tags": ["security", "privacy"]},
    }


def _results(report: AuditReport) -> Iterator[dict[str, Any]]:
    for index, leak in enumerate(Leak):
        state = report.states[leak]
        kind = KIND_OF_STATE[state]
        level = LEVELS[leak.severity] if kind == "fail" else "none"
        result: dict[str, Any] = {
            "ruleId": f"softleak/{leak.value}",
            "ruleIndex": index,
            "kind": kind,
            "level": level,
            "message": {"text": f"{report.name}: {leak.value} {state.value}. {headline(report)}"},
            "locations": [_location(report.name)],
        }
        if report.fingerprint:
            result["partialFingerprints"] = {"update/v1": f"{report.fingerprint}:{leak.value}"}
        yield result


def _location(name: str) -> dict[str, Any]:
    return {"physicalLocation": {"artifactLocation": {"uri": quote(name, safe="/")}}}
