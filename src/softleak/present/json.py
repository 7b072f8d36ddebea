"""Turn an audit into plain data for JSON. Numbers not finite become null."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from softleak.audit.findings import (
    CompositionFinding,
    InputFinding,
    LabelFinding,
    SamplesFinding,
)
from softleak.audit.leaks import Leak
from softleak.audit.report import Audit, AuditReport
from softleak.audit.sweeps import Point, WhatIf
from softleak.core.vocabulary import State
from softleak.inversion.results import Text
from softleak.io.atomic import write_text
from softleak.matching.reconstruction import Certificate
from softleak.present.advice import advice, severity_of_audit
from softleak.present.catalogue import attempts
from softleak.present.words import headline, summary

FORMAT = 2  # raised when a field changes its meaning
SCORED = ("label_error", "set_distance", "psnr", "tokens_right")  # what is told of a score


def as_data(audit: Audit) -> dict[str, Any]:
    """Return an audit as plain data: everything but the pictures."""
    data: dict[str, Any] = {
        "format": FORMAT,
        "verdict": summary(audit),
        "severity": severity_of_audit(audit).value,
        "advice": list(advice(audit)),
        "counts": {leak.value: audit.count(leak) for leak in Leak},
        "not_attacked": {leak.value: audit.count(leak, State.NOT_ATTACKED) for leak in Leak},
        "shares": len(audit.reports),
        "model": audit.model,
        "evidence": list(audit.evidence),
        "class_names": list(audit.class_names),
        "remarks": list(audit.remarks),
        "reports": [_report(report) for report in audit.reports],
        "refused": [asdict(refusal) for refusal in audit.refused],
        "provenance": asdict(audit.provenance),
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
        "notes": list(report.notes),
        "attacks": [
            {"attack": a.attack, "outcome": a.outcome.value, "why": a.why} for a in attempts(report)
        ],
        "label": _label(report.label),
        "feature": asdict(report.feature),
        "input": {"leaked": report.shows_input, **_input(report.input)},
        "composition": _composition(report.composition),
        "samples": _samples(report.samples),
        "assumptions": list(report.assumptions),
        "seconds": report.seconds,
        "score": score and {name: getattr(score, name) for name in SCORED},
    }


def _what_if(tried: WhatIf) -> dict[str, Any]:
    defences = [
        {
            "name": response.name,
            "setting": response.unit or None,
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


def _label(finding: LabelFinding) -> dict[str, Any]:
    recovery = finding.recovery
    return {
        "proved": finding.proved,
        "status": recovery.status.name,
        "message": recovery.message,
        "label": numbers(recovery.label),
        "error": recovery.error,
        "class_index": finding.class_index,
        "scalar": recovery.scalar,
        "scale": recovery.scale,
        "samples": recovery.samples,
        "noise": recovery.noise,
        "confidence": recovery.confidence,
        "family": repr(recovery.family) if recovery.family else None,
        "solutions": [
            {"scalar": c.scalar, "low": c.low, "high": c.high, "label": numbers(c.label)}
            for c in recovery.solutions
        ],
        "evidence": [asdict(piece) for piece in recovery.evidence],
        "seconds": finding.seconds,
    }


def _input(finding: InputFinding) -> dict[str, Any]:
    return {
        "method": finding.method.name,
        "message": finding.message,
        "psnr_predicted": finding.psnr_predicted,
        "determined": finding.determined,
        "misfit": finding.misfit,
        "agreement": finding.agreement,
        "shape": None if finding.pixels is None else list(finding.pixels.shape),
        "layers": [asdict(layer) for layer in finding.layers],
        "seconds": finding.seconds,
        "text": None if finding.text is None else _text(finding.text),
        "certificate": None if finding.certificate is None else _certificate(finding.certificate),
    }


def _certificate(found: Certificate) -> dict[str, Any]:
    """Return how Gauss–Newton went, and how well the share determines each direction."""
    return {
        "proved": found.proved,
        "reason": found.reason,
        "misfits": list(found.misfits),
        "undetermined": found.undetermined,
        "spectrum": numbers(found.spectrum),
        "seconds": found.seconds,
    }


def _composition(finding: CompositionFinding) -> dict[str, Any]:
    return {
        "samples": finding.samples,
        "present": list(finding.present),
        "counts": None if finding.counts is None else asdict(finding.counts),
        "message": finding.message,
        "attacked": finding.attacked,
        "otherwise": list(finding.otherwise),
        "signs": finding.signs,
    }


def _samples(finding: SamplesFinding) -> dict[str, Any]:
    """Return every sample of an update of several."""
    return {
        "attacked": finding.attacked,
        "message": finding.message,
        "size": finding.size or None,
        "proved": len(finding.proved),
        "inputs": finding.inputs,
        "seconds": finding.seconds,
        "each": [
            {
                "status": one.status.name,
                "message": one.message,
                "label": numbers(one.label),
                "error": one.error,
                "feature_error": one.feature_error,
            }
            for one in finding.samples
        ],
    }


def _text(text: Text) -> dict[str, Any]:
    return {
        "method": text.method,
        "explained": text.explained,
        "words": list(text.words),
        "tokens": [
            {"position": p.position, "token": p.token, "certainty": p.certainty.name}
            for p in text.places
        ],
    }


def numbers(tensor: Tensor | None) -> list[float] | None:
    """Return the entries of a vector."""
    return None if tensor is None else [float(entry) for entry in tensor]


def finite(data: Any) -> Any:  # noqa: ANN401
    """Return the same data with None in place of numbers that JSON cannot say."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
