"""All golden cases by kind: names, and the function that answers one.

What cannot be compared, and is not recorded or is compared loosely:

- sentences (messages, verdicts, advice, reasons), times, versions, paths: they may be reworded;
- condition numbers, residuals, spectra and misfits of layers: they are made of rounding errors,
  which differ between instruction sets by more than any useful tolerance;
- predicted errors are estimates of rounding: within half an order of magnitude, PSNRs within 10 dB;
- the input of an image that is not proved or not determined: the end of a search that rounding
  turns another way; its status is compared;
- labels that are proved are compared to within their own error bounds, others to within 1e-4 of
  each entry, those behind noise, of which only a posterior is known, to within 1e-2.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.golden import audits, batches, pictures, recoveries, texts
from tests.golden.plain import seeded

FOLDER = Path(__file__).parent / "answers"
CASES = {
    "recoveries": (tuple(recoveries.CHUNKS), recoveries.recoveries),
    "batches": (tuple(batches.CASES), batches.batch),
    "inverted": (tuple(pictures.INVERTED), pictures.inverted),
    "solved": (tuple(pictures.SOLVED), pictures.solved),
    "texts": (tuple(texts.CASES), texts.text),
    "audits": (audits.NAMES, audits.audit),
}
ALL = [(kind, name) for kind, (names, _) in CASES.items() for name in names]


def answer(kind: str, name: str):
    """Return what softleak answers today, as JSON would give it back."""
    seeded()
    return json.loads(json.dumps(CASES[kind][1](name)))


def recorded(kind: str) -> dict:
    """Return the recorded answers of one kind, by name."""
    return json.loads((FOLDER / f"{kind}.json").read_text())
