"""The audit log: a line of JSON for every client of every round, appended as rounds end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from softleak.audit.composition import CompositionFinding
from softleak.audit.rates import Leak
from softleak.integrations.flower.findings import ClientAudit, RoundAudit
from softleak.report.machine import finite, numbers


def append(path: Path, audit: RoundAudit) -> None:
    """Write a round's lines at the end of the log, in one go."""
    lines = [json.dumps(finite(line(audit.number, c)), allow_nan=False) for c in audit.clients]
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(f"{text}\n" for text in lines))


def line(number: int, client: ClientAudit) -> dict[str, Any]:
    """One client of one round as plain data."""
    said: dict[str, Any] = {"round": number, "node": str(client.node), "verdict": client.words}
    if client.report is None:
        return {**said, "audited": False, "reason": client.reason}
    recovery, found = client.report.label.recovery, client.report.input
    said |= {
        "audited": True,
        "status": recovery.status.name,
        "leaks": [leak.value for leak in Leak if leak in client.leaks],
        "states": {leak.value: state.value for leak, state in client.report.states.items()},
        "class": client.report.label.class_index,
        "label": numbers(recovery.label) if Leak.LABEL in client.leaks else None,
        "confidence": recovery.confidence,
        "noise": recovery.noise,
        "input_psnr_predicted": found.psnr_predicted,
    }
    return said | _composition(client.report.composition)


def _composition(found: CompositionFinding) -> dict[str, Any]:
    """What is known of the classes in an update of several samples, if it was read as one."""
    if not found.attacked:
        return {}
    counts = found.counts
    return {
        "gradients_at_least": found.samples,
        "classes_present": list(found.present),
        "class_counts_estimated": None if counts is None else list(counts.estimated),
        "class_counts_at_least": list(counts.low) if counts is not None and counts.low else None,
        "class_counts_at_most": list(counts.high) if counts is not None and counts.high else None,
        "composition": found.message,
    }
