"""What an answer says in words."""

from __future__ import annotations

from collections.abc import Sequence

from softleak.labels.evidence.weigh import Verdict
from softleak.labels.families import AnyLabel, Family
from softleak.results import Candidate


def why(
    unique: bool, fitting: Sequence[Candidate], verdict: Verdict, client: int, tolerance: float
) -> str:
    """Why the answer is what it is, given the candidates that fit."""
    conflicts = verdict.conflicts(client)
    if conflicts:
        names = ", ".join(piece.parameter for piece in conflicts)
        return f"pieces of evidence disagree: {names} gives another scalar; the share was altered"
    if unique and verdict.decided[client]:
        return "one label explains the gradient, by evidence from other layers"
    if unique:
        found = "; the evidence of other layers does not hold" if verdict.pieces[client] else ""
        return f"one label explains the gradient, by the assumed family{found}"
    width = max(candidate.width for candidate in fitting)
    continuum = f"a continuum of scalars, whose labels differ by up to {width:.2g} in L1"
    if len(fitting) == 1:
        return f"{continuum}, explains the gradient"
    several = f"{len(fitting)} separate solutions explain the gradient equally well"
    return f"{several}, among them {continuum}" if width > tolerance else several


def why_none(family: Family, evidence: bool) -> str:
    """Why no scalar fits."""
    if isinstance(family, AnyLabel) and evidence:
        return (
            "the evidence gives a scalar whose label is no probability distribution: the share was "
            'scaled (try scale="unknown"), altered, or computed in another mode of the model'
        )
    return f"no scalar gives a label of the family {family}"
