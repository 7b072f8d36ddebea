"""What a caller asks of a share."""

from __future__ import annotations

import random
from dataclasses import dataclass

import softleak as sl
from benchmarks.adversary.labels import FAMILIES
from benchmarks.adversary.truth import Truth
from softleak.core.share import Scale


@dataclass(frozen=True)
class Question:
    """Arguments of ``recover_label``. ``plain`` is the call without any of them."""

    evidence: bool = True
    family: sl.Family | None = None
    scale: Scale | None = None

    @property
    def plain(self) -> bool:
        return self == Question()

    def __str__(self) -> str:
        scale = "" if self.scale is None else f", scale {self.scale}"
        family = "" if self.family is None else f", {self.family}"
        return ("whole share" if self.evidence else "head only") + family + scale


def draw(chance: random.Random, kind: str, truth: Truth, declared: bool) -> Question:
    """A question whose assumptions are true; ``declared`` says the share states its own scale.

    A family is named only where the client minimised a cross-entropy, and a scale is vouched for
    only where nothing was done to the share.
    """
    evidence = chance.random() < 0.65
    family = FAMILIES.get(kind) if chance.random() < 0.3 else None
    if family is not None and not _true(family, truth):
        family = None
    scale: Scale | None = None
    if not declared:
        draw = chance.random()
        if draw < 0.15:
            scale = "unknown"
        elif draw < 0.3 and truth.clean:
            scale = "known"
    return Question(evidence, family, scale)


def _true(family: sl.Family, truth: Truth) -> bool:
    """Whether the family holds the label of a cross-entropy."""
    y = truth.labels[0]
    belongs = float((family.project(y) - y).abs().max()) < 1e-9
    return belongs and truth.samples == 1 and not truth.undeclared
