"""Write an audit as JUnit XML: a test case per update and kind of leak."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from softleak.audit.leaks import Leak
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
