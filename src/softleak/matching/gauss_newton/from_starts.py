"""This module tries Gauss–Newton from several starts and states what the best of them is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from softleak.matching.gauss_newton.newton_method import GaussNewton
from softleak.matching.gauss_newton.newton_solver import NewtonSolution
from softleak.matching.gauss_newton.share_equations import BatchKnowledge
from softleak.matching.reconstruction import MatchStatus, Reconstruction
from softleak.matching.stopping import Stopping
from softleak.share import GradientShare
from softleak.subject import Subject

FLAT = 2  # the number of the attempt that begins at a flat colour


def solve_from_starts(
    method: GaussNewton,
    subject: Subject,
    share: GradientShare,
    known: BatchKnowledge,
    starts: Sequence[Tensor],
    stopping: Stopping,
    near: bool = False,
) -> NewtonSolution:
    """Return the solution of least misfit over starts (B, …), tried until one explains the share.

    Each start is an attempt of its own. There has to be one start at least. If the first of several
    attempts gets stuck or takes long, it is given up and taken up again last of all: a cautious
    attempt more often finds the way, and sooner. If it explains the share already and only lacks
    its errors, it is taken up at once. Unless the starts are near, the third attempt begins at the
    flat colour that explains the share best.
    """
    first = method.brief if len(starts) > 1 else method
    found = [first.solve(subject, share, known, starts[0], stopping)]

    def further() -> Iterator[tuple[GaussNewton, Tensor]]:
        if explains(found[0]):
            yield method, found[0].inputs
        for attempt, start in enumerate(starts[1:], 1):
            flat = attempt == FLAT and not near
            begin = method.flat_start(subject, share, known, start, stopping) if flat else start
            yield method.attempt(attempt), begin
        if len(starts) > 1:
            yield method, found[0].inputs

    ways = further()
    while not (_finished(_best(found)) or stopping.over) and (way := next(ways, None)):
        found.append(way[0].solve(subject, share, known, way[1], stopping))
    return _best(found)


def _best(found: list[NewtonSolution]) -> NewtonSolution:
    """Return the solution of least misfit; one that explains the share with its errors wins."""
    return min(found, key=lambda one: (not _finished(one), one.misfit))


def _finished(found: NewtonSolution) -> bool:
    """Return whether a solution explains the share, and its errors could be predicted."""
    return explains(found) and found.certificate.error is not None


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
