"""The audit log: one line of JSON per client and round, and what the program's own log says."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from softleak.auditing.composition import CompositionFinding
from softleak.auditing.rates import Leak
from softleak.integrations.guarding.round_findings import ClientAudit, RoundAudit
from softleak.report.machine import finite, numbers

LOGGER = logging.getLogger("softleak")


def append(path: Path, audit: RoundAudit) -> None:
    """Append the lines of a round to the log, in one write.

    Args:
        path: the log file, which is made if it does not exist.
        audit: the round.
    """
    lines = [json.dumps(finite(line(audit.number, c)), allow_nan=False) for c in audit.clients]
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(f"{text}\n" for text in lines))


def line(number: int, client: ClientAudit) -> dict[str, Any]:
    """Return one client of one round as plain data.

    Args:
        number: the number of the round.
        client: what was found about the client's update.
    """
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
    """Return what is known of the classes in an update; empty if they were not attacked."""
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


def announce(audit: RoundAudit) -> None:
    """Log a round in numbers, and warn of updates that prove their classes or were not audited."""
    counts = ", ".join(f"{k.removeprefix('softleak-')} {v:.3g}" for k, v in audit.metrics().items())
    LOGGER.info("round %d: %s", audit.number, counts)
    for client in audit.clients:
        if client.report is None or client.report.composition.present:
            LOGGER.warning("round %d, node %d: %s", audit.number, client.node, client.words)
