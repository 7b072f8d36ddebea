"""This module maps the sections of a dossier to what two public documents ask about.

The documents are NIST AI 100-2 (Adversarial Machine Learning, privacy attacks, data
reconstruction) and EDPB Opinion 28/2024 (when a model counts as anonymous). The mapping names where
evidence belongs; it does not say that a legal test is passed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mapped:
    """This says which topics of the two documents one section of a dossier speaks to."""

    section: str
    nist: str
    edpb: str


MAPPING = (
    Mapped("What was audited", "stage of learning: training", "documentation"),
    Mapped("Threat model", "attacker's goals, capabilities and knowledge",
           "means reasonably likely to be used"),
    Mapped("Attacks and outcomes", "privacy attacks: data reconstruction; property inference for "
           "class composition", "testing and resistance to attacks"),
    Mapped("Certificates", "privacy attacks: data reconstruction",
           "likelihood of direct extraction"),
    Mapped("Defences", "privacy attacks: mitigations",
           "design choices that reduce what can be extracted"),
    Mapped("Residual risk", "open challenges and limits of mitigations",
           "whether the likelihood of extraction is insignificant"),
    Mapped("Recommended action", "mitigations", "documentation of measures and their effect"),
)  # fmt: skip
