"""What an answer says in words."""

from __future__ import annotations

from collections.abc import Sequence

from softleak.labels.evidence.weigh import Verdict
from softleak.labels.families import AnyLabel, Family
from softleak.results import Candidate


def why(
    unique: bool, enough: bool, fitting: Sequence[Candidate], verdict: Verdict, client: int
) -> str:
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
    width = max(candidate.width for candidate in fitting)
    several = "" if len(fitting) == 1 else f"{len(fitting)} separate solutions, among them "
    found = f"{several}a continuum of scalars whose labels differ by up to {width:.2g} in L1"
    if not enough:
        return f"too few classes for the assumed family to single out a label: {found}, or others"
    return f"equally well explained: {found}"


def why_none(family: Family, evidence: bool) -> str:
    """Why no scalar fits."""
    if isinstance(family, AnyLabel) and evidence:
        return (
            "the evidence gives a scalar whose label is no probability distribution: the share was "
            'scaled (try scale="unknown"), altered, or computed in another mode of the model'
        )
    return f"no scalar gives a label of the family {family}"
