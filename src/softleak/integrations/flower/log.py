"""The audit log: a line of JSON for every client of every round, appended as rounds end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
        "class": client.report.label.class_index,
        "label": numbers(recovery.label) if Leak.LABEL in client.leaks else None,
        "confidence": recovery.confidence,
        "noise": recovery.noise,
        "input_psnr_predicted": found.psnr_predicted,
    }
    batch = client.batch
    if batch is not None:
        said["gradients_at_least"] = batch.gradients
        said["classes_present"] = list(batch.present)
        said["class_counts_estimated"] = None if batch.counts is None else batch.counts.tolist()
    return said
