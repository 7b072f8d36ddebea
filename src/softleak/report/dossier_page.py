"""This module writes the dossier as a page that prints well."""

from __future__ import annotations

import json
from pathlib import Path

from softleak.atomic import write_text
from softleak.auditing.attack_outcome import Outcome
from softleak.auditing.reports import Audit
from softleak.auditing.severity import severity_of_audit
from softleak.report.chart import CHARTED_LEAKS, FRAME, chart
from softleak.report.dossier_data import dossier_data
from softleak.report.page import fill, untried_words
from softleak.report.tiles import tiles
from softleak.vocabulary import Leak

MOST_PRINTED = 200  # updates and certificates that are printed; the JSON has all


def write_dossier(folder: Path, audit: Audit) -> None:
    """Write ``dossier.html`` and ``dossier.json``, each whole or not at all.

    Args:
        folder: where they go; it exists.
        audit: what was found.
    """
    write_text(folder / "dossier.html", dossier_page(audit))
    text = json.dumps(dossier_data(audit), indent=1, allow_nan=False)
    write_text(folder / "dossier.json", text + "\n")


def dossier_page(audit: Audit) -> str:
    """Return the dossier as text. Whatever comes from a file is escaped by the template."""
    return fill(
        "dossier.html",
        audit=audit,
        d=dossier_data(audit),
        severity=severity_of_audit(audit),
        tiles=tiles(audit.count, len(audit.reports)),
        slugs={outcome.value: outcome.name.lower() for outcome in Outcome},
        charts=[] if audit.what_if is None else [chart(r) for r in audit.what_if.responses],
        charted=[leak.value for leak in CHARTED_LEAKS],
        kinds=Leak,
        untried=untried_words(audit),
        frame=FRAME,
        most=MOST_PRINTED,
    )
