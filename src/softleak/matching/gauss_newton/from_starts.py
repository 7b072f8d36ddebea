"""This module tries Gauss–Newton from several starts and states what the best of them is worth."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from softleak.matching.gauss_newton.newton_method import GaussNewton
from softleak.matching.gauss_newton.newton_solver import NewtonSolution
from softleak.matching.gauss_newton.share_equations import BatchKnowledge
from softleak.matching.reconstruction import MatchStatus, Reconstruction
from softleak.matching.stopping import Stopping
from softleak.share import GradientShare
from softleak.subject import Subject

SAME_PLACE = 3  # how many attempts differ in how their steps are damped, not in their start


def solve_from_starts(
    method: GaussNewton,
    subject: Subject,
    share: GradientShare,
    known: BatchKnowledge,
    starts: Sequence[Tensor],
    stopping: Stopping,
    near: bool,
) -> NewtonSolution:
    """Return the solution of least misfit over starts (B, …), tried until one explains the share.

    Each start is an attempt of its own. There has to be one start at least. If the first of several
    attempts gets stuck or takes long, it is given up and taken up again last of all: a cautious
    attempt more often finds the way, and sooner. The first three attempts differ in how steps are
    damped. They begin at the same place: the start if that is near, else a coarse image.
    """
    if not near:
        coarse = method.coarse_start(subject, share, known, starts[0], stopping)
        starts = [coarse] * len(starts[:SAME_PLACE]) + [*starts[SAME_PLACE:]]
    first = method.brief if len(starts) > 1 else method
    found = [first.solve(subject, share, known, starts[0], stopping)]
    ways = [(method.attempt(attempt), start) for attempt, start in enumerate(starts) if attempt]
    if ways:
        ways.append((method, found[0].inputs))
    for way, start in ways:
        if explains(_best(found)) or stopping.over:
            break
        found.append(way.solve(subject, share, known, start, stopping))
    return _best(found)


def _best(found: list[NewtonSolution]) -> NewtonSolution:
    return min(found, key=lambda one: one.misfit)


def explains(found: NewtonSolution) -> bool:
    """Return whether a solution explains every layer of the share to within its rounding."""
    return found.certificate.explained


def described(found: NewtonSolution, stopping: Stopping) -> Reconstruction:
    """Return a solution for the inputs (B, …) as the answer of gradient matching."""
    certificate = found.certificate
    status = MatchStatus.CONVERGED if found.stuck else stopping.ended
    if explains(found) and status is MatchStatus.EXHAUSTED:
        status = MatchStatus.CONVERGED
    return Reconstruction(
        MatchStatus.PROVED if certificate.proved else status, found.inputs, found.labels,
        found.misfit**2, found.misfit, found.steps, certificate.reason, certificate.error,
        certificate,
    )  # fmt: skip
