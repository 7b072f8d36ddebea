"""What an answer says in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from softleak.labels.evidence.weigh import Verdict
from softleak.labels.families import AnyLabel, Family
from softleak.results import Candidate


@dataclass(frozen=True, eq=False)
class Fitting:
    """The candidates that fit, the bound of the label's error, and what counts as one answer."""

    candidates: Sequence[Candidate]
    error: float
    tolerance: float

    @property
    def width(self) -> float:
        """How far apart the labels of one candidate can be."""
        return max(candidate.width for candidate in self.candidates)

    @property
    def one(self) -> bool:
        """Whether there is one solution, and only rounding in it."""
        return len(self.candidates) == 1 and self.width <= self.tolerance

    @property
    def words(self) -> str:
        """How many there are, and how far apart."""
        if self.one:
            return f"one solution, whose label is known to {self.error:.2g} in L1"
        count, width = len(self.candidates), self.width
        if width > self.tolerance:
            several = "" if count == 1 else f"{count} separate solutions, among them "
            return f"{several}a continuum of scalars whose labels differ by up to {width:.2g} in L1"
        labels = torch.stack([candidate.label for candidate in self.candidates])
        apart = float(torch.cdist(labels, labels, p=1).max())
        return f"{count} separate solutions, whose labels are up to {apart:.2g} apart in L1"


def why(unique: bool, enough: bool, fitting: Fitting, verdict: Verdict, client: int) -> str:
    """Why the answer is what it is, given the candidates that fit."""
    decided, conflicts = bool(verdict.decided[client]), verdict.conflicts(client)
    if conflicts:
        names = ", ".join(piece.parameter for piece in conflicts)
        if decided:
            return (
                f"pieces of evidence disagree: {names} contradicts the rest; the share was altered"
            )
        return (
            f"a label of the assumed family fits, but the evidence of {names} does not hold: the "
            "share was altered, carries noise, or was computed in another mode of the model"
        )
    if unique:
        by = "evidence from other layers" if decided else "the assumed family"
        return f"one label explains the gradient, by {by}"
    found = fitting.words
    if not enough:
        return f"too few classes for the assumed family to single out a label: {found}, or others"
    return found if fitting.one else f"equally well explained: {found}"


def why_none(family: Family, evidence: bool) -> str:
    """Why no scalar fits."""
    if isinstance(family, AnyLabel) and evidence:
        return (
            "the evidence gives a scalar whose label is no probability distribution: the share was "
            'scaled (try scale="unknown"), altered, or computed in another mode of the model'
        )
    return f"no scalar gives a label of the family {family}"
