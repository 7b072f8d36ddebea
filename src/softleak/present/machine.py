"""What machines read: ``audit.json``, JUnit XML, SARIF 2.1.0 and remarks for a GitHub workflow.

Numbers that are not finite become null in JSON.
"""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torch import Tensor

from softleak._version import __version__
from softleak.audit.leaks import Leak, Severity
from softleak.audit.report import (
    Audit,
    AuditReport,
    InputFinding,
    LabelFinding,
    SamplesFinding,
    proved_of,
)
from softleak.audit.sweeps import Point, WhatIf
from softleak.core.vocabulary import State
from softleak.io.atomic import write_text
from softleak.present.advice import advice, severity_of_audit
from softleak.present.catalogue import endings
from softleak.present.fit import fit_data, in_a_word
from softleak.present.words import headline, summary

FORMAT = 2  # raised when a field changes its meaning
# What is told of a score, and of a composition.
SCORED = ("label_error", "set_distance", "psnr", "tokens_right")
COMPOSED = ("samples", "present", "raised", "message", "attacked", "otherwise", "signs", "counts")


def as_data(audit: Audit) -> dict[str, Any]:
    """Return an audit as plain data: everything but the pictures."""
    data: dict[str, Any] = {
        "format": FORMAT,
        "verdict": summary(audit),
        "severity": severity_of_audit(audit).value,
        "advice": list(advice(audit)),
        "counts": {leak.value: audit.count(leak) for leak in Leak},
        "not_attacked": {leak.value: audit.untried(leak) for leak in Leak},
        "shares": len(audit.reports),
        **_fields(audit, "model", "evidence", "class_names", "remarks"),
        "reports": [_report(report) for report in audit.reports],
        "refused": [asdict(refusal) for refusal in audit.refused],
        "provenance": asdict(audit.provenance),
        "hiding": [{"share": name, **asdict(hiding)} for name, hiding in audit.hiding],
        "what_if": None if audit.what_if is None else _what_if(audit.what_if),
    }
    return {key: finite(value) for key, value in data.items()}


def write_json(path: Path, audit: Audit) -> None:
    """Write an audit as JSON, whole or not at all."""
    write_text(path, json.dumps(as_data(audit), indent=1, allow_nan=False) + "\n")


def _report(report: AuditReport) -> dict[str, Any]:
    score = report.score
    return {
        "name": report.name,
        "sha256": report.fingerprint or None,
        "verdict": headline(report),
        "leaks": [leak.value for leak in Leak if leak in report.leaks],
        "states": {leak.value: state.value for leak, state in report.states.items()},
        "fit": fit_data(report.fit),
        "notes": list(report.notes),
        "attacks": [
            {"attack": attack, "outcome": outcome.value, "why": why}
            for attack, (outcome, why) in endings(report).items()
        ],
        "label": _label(report.label),
        "feature": asdict(report.feature),
        "input": {"leaked": report.shows_input, **_input(report.input)},
        "composition": _fields(report.composition, *COMPOSED),
        "samples": _samples(report.samples),
        "assumptions": list(report.assumptions),
        "seconds": report.seconds,
        "score": score and _fields(score, *SCORED),
    }


def _what_if(tried: WhatIf) -> dict[str, Any]:
    defences = [
        {
            "name": response.name,
            "setting": response.setting or None,
            "points": [_point(point) for point in response.points],
            "did_not_succeed_from": {leak.value: s for leak, s in response.stops.items()},
            "left_there": {leak.value: asdict(u) for leak, u in response.left.items()},
            "labels_unclaimed": response.unclaimed,
        }
        for response in tried.responses
    ]
    return {"shares": tried.shares, "seeds": tried.seeds, "defences": defences}


def _point(point: Point) -> dict[str, Any]:
    rates = {leak.value: [rate.hits, rate.trials] for leak, rate in point.rates.items()}
    left = {} if point.utility is None else {"left": asdict(point.utility)}
    return {"setting": point.setting, **rates, **left, "labels_unclaimed": point.unclaimed}


def _fields(found: object, *names: str) -> dict[str, Any]:
    """Return some attributes of a finding under their own names, as JSON holds them."""
    return {name: _plain(getattr(found, name)) for name in names}


def numbers(tensor: Tensor | None) -> list[float] | None:
    """Return the entries of a vector."""
    return None if tensor is None else [float(entry) for entry in tensor]


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Return numbers of a vector, the fields of a dataclass, the name of an enum's member."""
    if isinstance(value, Tensor):
        return numbers(value)
    if isinstance(value, Enum):
        return value.name
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _label(finding: LabelFinding) -> dict[str, Any]:
    recovery = finding.recovery
    told = ("label", "message", "error", "scalar", "scale", "samples", "noise", "confidence")
    has = (recovery.label > 0.5) if recovery.tags and recovery.label is not None else None
    loss = {"loss": recovery.loss.name, "has": has if has is None else has.nonzero()[:, 0].tolist()}
    return {
        "proved": proved_of(recovery),  # of the update read as that of one sample
        **_fields(finding, "class_index", "seconds"),
        **_fields(recovery, "status", *told),
        **({} if recovery.loss.balanced else loss),
        **({} if recovery.presence is None else _fields(recovery, "presence")),
        "family": repr(recovery.family) if recovery.family else None,
        "solutions": [_fields(c, "scalar", "low", "high", "label") for c in recovery.solutions],
        "evidence": [asdict(piece) for piece in recovery.evidence],
    }


def _input(finding: InputFinding) -> dict[str, Any]:
    told = ("message", "psnr_predicted", "determined", "misfit", "agreement", "seconds")
    text, certificate = finding.text, finding.certificate
    if text is not None:
        tokens = [_fields(place, "position", "token", "certainty") for place in text.places]
    return {
        "method": finding.method.name,
        "shape": None if finding.pixels is None else list(finding.pixels.shape),
        "layers": [asdict(layer) for layer in finding.layers],
        "text": text and {**_fields(text, "method", "explained", "words"), "tokens": tokens},
        # How Gauss–Newton went, and how well the share determines each direction.
        "certificate": certificate and _fields(
            certificate, "proved", "reason", "misfits", "undetermined", "seconds", "spectrum"
        ),
        **_fields(finding, *told),
    }  # fmt: skip


def _samples(finding: SamplesFinding) -> dict[str, Any]:
    """Return every sample of an update of several."""
    told = ("status", "label", "message", "error", "feature_error")
    return {
        **_fields(finding, "attacked", "message", "inputs", "seconds"),
        "size": finding.size or None,
        "proved": len(finding.proved),
        "each": [_fields(one, *told) for one in finding.samples],
    }


def finite(data: Any) -> Any:  # noqa: ANN401
    """Return the same data with None in place of numbers that JSON cannot say."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML has none


def write_junit(path: Path, audit: Audit, gates: frozenset[Leak]) -> None:
    """Write the findings as JUnit XML, whole or not at all."""
    write_text(path, junit(audit, gates))


def junit(audit: Audit, gates: frozenset[Leak] = frozenset()) -> str:
    """Return the findings as JUnit XML, of the kinds of leak that ``gates`` name, or of all."""
    kinds = [leak for leak in Leak if leak in gates or not gates]
    cases = [_case(r, leak, bool(gates)) for r in audit.reports for leak in kinds]
    for refusal in audit.refused:
        name = {"classname": _printable(refusal.name), "name": "read", "time": "0"}
        cases.append(ET.Element("testcase", name))
        told = {"message": _printable(refusal.reason), "type": "refused"}
        ET.SubElement(cases[-1], "error", told)
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
    void = state is State.CONTRADICTED
    why = f"{state.value} ({in_a_word(report.fit)})" if void else "not attacked: nothing is known"
    if state is State.LEAKED:
        told = {"message": f"{leak.value} leaked", "type": leak.severity.value}
        ET.SubElement(case, "failure", told).text = words
    elif not state.attacked and gated:
        ET.SubElement(case, "error", {"message": why, "type": "not attacked"}).text = words
    elif not state.attacked:
        ET.SubElement(case, "skipped", {"message": why})
    return case


def _printable(text: str) -> str:
    return UNPRINTABLE.sub("�", text)


SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {  # and scores
    Severity.CRITICAL: ("error", "9.5"), Severity.HIGH: ("error", "8.0"),
    Severity.MEDIUM: ("warning", "5.5"), Severity.LOW: ("note", "2.0"),
}  # fmt: skip
# In SARIF "open" says that nobody can tell, which is not "pass".
KIND_OF_STATE = {
    State.LEAKED: "fail", State.NO_SUCCESS: "pass",
    State.NOT_ATTACKED: "open", State.CONTRADICTED: "open",
}  # fmt: skip


def write_sarif(path: Path, audit: Audit) -> None:
    """Write the findings as SARIF, whole or not at all."""
    write_text(path, json.dumps(sarif(audit), indent=1, allow_nan=False) + "\n")


def sarif(audit: Audit) -> dict[str, Any]:
    """Return the findings as a SARIF log of one run."""
    invocation: dict[str, Any] = {"executionSuccessful": not audit.refused}
    if audit.provenance.command:
        invocation["commandLine"] = audit.provenance.command
    if audit.provenance.date:
        invocation["endTimeUtc"] = audit.provenance.date.replace("+00:00", "Z")
    refused = [
        _located(refusal.name, f"{refusal.name}: {refusal.reason}", level="error")
        for refusal in audit.refused
    ]
    invocation |= {"toolExecutionNotifications": refused} if refused else {}
    rules = [_rule(leak) for leak in Leak]
    versions = {"version": __version__, "semanticVersion": __version__}
    run = {
        "tool": {"driver": {"name": "softleak", **versions, "rules": rules}},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": [result for report in audit.reports for result in _results(report)],
    }
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(leak: Leak) -> dict[str, Any]:
    level, score = LEVELS[leak.severity]
    return {
        "id": f"softleak/{leak.value}",
        "name": f"{leak.value.capitalize()}Leak",
        "shortDescription": {"text": f"An update gives away its {leak.short}."},
        "fullDescription": {"text": f"It counts as leaked if: {leak.counts_if}."},
        "defaultConfiguration": {"level": level},
        "properties": {"security-severity": score, "tags": ["security", "privacy"]},
    }


def _results(report: AuditReport) -> Iterator[dict[str, Any]]:
    for index, leak in enumerate(Leak):
        state = report.states[leak]
        kind = KIND_OF_STATE[state]
        mark = {"update/v1": f"{report.fingerprint}:{leak.value}"}
        yield _located(
            report.name, f"{report.name}: {leak.value} {state.value}. {headline(report)}",
            ruleId=f"softleak/{leak.value}", ruleIndex=index, kind=kind,
            level=LEVELS[leak.severity][0] if kind == "fail" else "none",
            properties={"fit": finite(fit_data(report.fit))},
            **({"partialFingerprints": mark} if report.fingerprint else {}),
        )  # fmt: skip


def _located(name: str, words: str, **more: object) -> dict[str, Any]:
    """Return a message on one file."""
    place = {"physicalLocation": {"artifactLocation": {"uri": quote(name, safe="/")}}}
    return {**more, "message": {"text": words}, "locations": [place]}


def github(audit: Audit, gates: frozenset[Leak]) -> str:
    """Return the findings as commands of a GitHub workflow, which shows them as remarks."""
    remarks = [
        ("error", f"{refusal.name} was refused", refusal.reason) for refusal in audit.refused
    ]
    for report in audit.reports:
        for leak, state in report.states.items():
            closed = leak in gates and (state is State.LEAKED or not state.attacked)
            if closed or state is State.LEAKED:
                title = f"{report.name}: {leak.short} {state.value}"
                remarks.append(("error" if closed else "warning", title, headline(report)))
    level = "error" if any(level == "error" for level, *_ in remarks) else "notice"
    remarks.append((level, "softleak", summary(audit)))
    return "".join(
        f"::{level} title={_escaped(title, ':,')}::{_escaped(words)}\n"
        for level, title, words in remarks
    )


def _escaped(words: str, also: str = "") -> str:
    """Return words with what a workflow command would read as its own written by its number."""
    return "".join(f"%{ord(c):02X}" if c in "%\r\n" + also else c for c in words)
