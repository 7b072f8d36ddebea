"""Write the dossier as a page that prints well."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from softleak.audit.report import Audit, AuditReport, Outcome
from softleak.audit.sweeps import Response
from softleak.core.vocabulary import written
from softleak.io.atomic import write_text
from softleak.present.advice import (
    ATTACKER,
    advice,
    assumptions_of,
    knowledge_of,
    residual_risk,
    severity_of_audit,
    severity_of_share,
)
from softleak.present.catalogue import CataloguedAttack, every_attack, tally
from softleak.present.fit import fit_data, fit_rows
from softleak.present.machine import finite
from softleak.present.page import charted, fill, verdict
from softleak.present.words import (
    composition_words,
    features_words,
    headline,
    inputs_words,
    label_words,
    sample_words,
    summary,
)

# Which topics of NIST AI 100-2 and of EDPB Opinion 28/2024 each section of a dossier speaks to.
MAPPING = (
    ("What was audited", "stage of learning: training", "documentation"),
    ("Threat model", "attacker's goals, capabilities and knowledge",
     "means reasonably likely to be used"),
    ("Attacks and outcomes", "privacy attacks: data reconstruction; property inference for "
     "class composition", "testing and resistance to attacks"),
    ("Certificates", "privacy attacks: data reconstruction",
     "likelihood of direct extraction"),
    ("Defences", "privacy attacks: mitigations",
     "design choices that reduce what can be extracted"),
    ("Residual risk", "open challenges and limits of mitigations",
     "whether the likelihood of extraction is insignificant"),
    ("Recommended action", "mitigations", "documentation of measures and their effect"),
)  # fmt: skip


DOSSIER_FORMAT = 1  # raised when a field changes its meaning
MOST_REASONS = 5  # reasons that are listed per attack; the JSON of the audit has every share


def dossier_data(audit: Audit) -> dict[str, Any]:
    """Return the dossier of an audit as plain data."""
    made, severity, tried = audit.provenance, severity_of_audit(audit), audit.what_if
    data = {
        "kind": "softleak-dossier",
        "format": DOSSIER_FORMAT,
        "date": made.date or None,
        "auditor": made.auditor or None,
        "verdict": summary(audit),
        "severity": {"level": severity.value, "meaning": severity.meaning},
        "recommended_action": list(advice(audit)),
        "audited": {
            "model": audit.model or None,
            "hashes": _pairs(made.hashes),
            "files": _pairs(made.inputs),
            "updates": [_update(report) for report in audit.reports],
            "refused": [asdict(refusal) for refusal in audit.refused],
            "versions": _pairs(made.versions),
            "command": made.command or None,
            "remarks": [*audit.remarks, *audit.cautions],
        },
        "threat_model": {
            "attacker": list(ATTACKER),
            "knowledge": _pairs(knowledge_of(audit)),
            "assumptions": list(assumptions_of(audit)),
        },
        "attacks": [_attack(attack, audit) for attack in every_attack()],
        "certificates": [
            {"update": name, "of": what, "kind": kind, "statement": words}
            for name, what, kind, words in _certificates(audit)
        ],
        "defences": None
        if tried is None
        else {
            "updates": tried.shares,
            "seeds": tried.seeds,
            "curves": [_curve(response) for response in tried.responses],
        },
        "residual_risk": list(residual_risk(audit)),
        "mapping": [
            {"section": section, "nist": nist, "edpb": edpb} for section, nist, edpb in MAPPING
        ],
    }
    whole: dict[str, Any] = finite(data)
    return whole


def _pairs(pairs: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in pairs]


def _update(report: AuditReport) -> dict[str, Any]:
    return {
        "name": report.name,
        "sha256": report.fingerprint or None,
        "severity": severity_of_share(report).value,
        "verdict": headline(report),
        "states": {leak.value: state.value for leak, state in report.states.items()},
        "fit": fit_data(report.fit),
    }


def _attack(attack: CataloguedAttack, audit: Audit) -> dict[str, Any]:
    """Return how one attack ended on all shares, with the commonest reasons."""
    reasons = Counter(attack.ending(report) for report in audit.reports).most_common(MOST_REASONS)
    return {
        "id": attack.id,
        "name": attack.name,
        "aim": attack.aim.value,
        "method": attack.method,
        "outcomes": {o.value: n for o, n in tally(attack, audit.reports).items()},
        "reasons": [{"outcome": o.value, "why": why, "updates": n} for (o, why), n in reasons],
    }


def _certificates(audit: Audit) -> Iterator[tuple[str, str, str, str]]:
    """Yield what is proved or bounded of each share: its name, of what, how, and the words."""
    for report in audit.reports:
        yield from ((report.name, *told) for told in _proved(report, audit.class_names))
    for name, hiding in audit.hiding:
        proofs = (proof for proof in (hiding.declared, hiding.proof) if proof is not None)
        yield from ((name, "label", "bound", proof.message) for proof in proofs)


def _proved(report: AuditReport, names: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Yield what is proved of one share, or stated with a probability or a predicted error."""
    found, proved, samples = report.input, report.label.proved, report.samples
    if proved in ("UNIQUE", "CLASS", "PROBABLE") and not report.label.samples:
        kind = "probability" if proved == "PROBABLE" else "proof"
        yield "label", kind, label_words(report, names, remark="")
    if report.feature.proved:
        yield "feature", "proof", f"known to a relative error of {written(report.feature.error)}"
    told = found.psnr_predicted
    if not samples.inputs and found.method.exact and found.leaked and told is not None:
        yield "input", "predicted error", f"{found.message}; predicted PSNR {told:.0f} dB"
    for number, one in enumerate(report.label.samples, 1):
        yield "label", "proof", f"sample {number}: {sample_words(one, names, remark='')}"
    if samples.features:
        yield "feature", "proof", features_words(samples)
    if samples.proved_inputs:
        yield "input", "proof", inputs_words(samples)
    if report.composition.raised:
        yield "composition", "proof", composition_words(report, names, remark="")  # all of them


def _curve(response: Response) -> dict[str, Any]:
    """Return how often each attack succeeded at each setting, with intervals of 95 %."""
    return {
        "defence": response.name,
        "setting": response.setting or None,
        "points": [
            {
                "setting": point.setting,
                "attack": leak.value,
                "successes": rate.hits,
                "trials": rate.trials,
                "interval": list(rate.interval),
            }
            for point in response.points
            for leak, rate in point.rates.items()
        ],
        "did_not_succeed_from": {leak.value: end for leak, end in response.stops.items()},
        "labels_unclaimed": response.unclaimed,
    }


MOST_PRINTED = 200  # updates and certificates that are printed; the JSON has all


def write_dossier(folder: Path, audit: Audit) -> None:
    """Write ``dossier.html`` and ``dossier.json`` to a folder, each whole or not at all."""
    write_text(folder / "dossier.html", dossier_page(audit))
    text = json.dumps(dossier_data(audit), indent=1, allow_nan=False)
    write_text(folder / "dossier.json", text + "\n")


def dossier_page(audit: Audit) -> str:
    """Return the dossier as text, with the fit of the only update or of those that do not fit."""
    every = audit.reports
    told = every if len(every) == 1 else [report for report in every if not report.fit.holds]
    return fill(
        "dossier.html",
        **verdict(audit),
        d=dossier_data(audit),
        slugs={outcome.value: outcome.name.lower() for outcome in Outcome},
        charted=[leak.value for leak in charted()],
        most=MOST_PRINTED,
        fits=[(report, fit_rows(report.fit)) for report in told[:MOST_PRINTED]],
    )
