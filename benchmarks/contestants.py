"""What is timed for a label: softleak, Algorithms 1 and 2 in three ways, and one product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from benchmarks.cases import Case
from benchmarks.classic import PUBLISHED_SMOOTHING, ClassicResult, EntryByEntry, FullHead
from benchmarks.timing import Contestant, Timing
from softleak import Recovery, Smoothed, recover_label
from softleak.paper.classic import RowRatios, Swarm

FLOOR, HEAD_ONLY, EVIDENCE = "one W g", "head only", "evidence"
# The published code's loops over entries in Python; tensor operations, one scalar at a time; our
# O(C) evaluation, all particles at once.
AS_PUBLISHED, TENSORS, AT_ONCE = "as published", "with tensors", "at once"
EVALUATIONS: dict[str, type[RowRatios]] = {
    AS_PUBLISHED: EntryByEntry,
    TENSORS: FullHead,
    AT_ONCE: RowRatios,
}

Answer = Tensor | Recovery | ClassicResult
Results = dict[str, Timing[Answer]]


def contestants(case: Case, kinds: Sequence[str]) -> list[Contestant[Answer]]:
    """Return everything that is timed, with the algorithms evaluated in these ways."""
    model, head, shares = case.model, case.head, case.shares
    W = model.get_parameter(head.weight_name).detach()

    def head_only(i: int) -> Recovery:
        return recover_label(model, shares[i], evidence=False, family=Smoothed(), head=head)

    def with_evidence(i: int) -> Recovery:
        return recover_label(model, shares[i], evidence=case.evidence, head=head)

    return [
        # It runs once per round like the others, which do not find W in the cache either.
        Contestant(FLOOR, lambda i: W @ shares[i][head.weight_name][0]),
        Contestant(HEAD_ONLY, head_only),
        Contestant(EVIDENCE, with_evidence),
        *(_algorithm_1(case, kind) for kind in kinds),
        *(_algorithm_2(case, kind) for kind in kinds),
    ]


def _algorithm_1(case: Case, kind: str) -> Contestant[Answer]:
    """Return Algorithm 1 (L-BFGS), evaluated in this way."""
    search = replace(PUBLISHED_SMOOTHING.lbfgs, evaluation=EVALUATIONS[kind])
    return Contestant(
        name_of(1, kind), lambda i: search(case.model, case.shares[i], head=case.head)
    )


def _algorithm_2(case: Case, kind: str) -> Contestant[Answer]:
    """Return Algorithm 2 (particle swarm), evaluated in this way."""
    search = replace(PUBLISHED_SMOOTHING.pso, evaluation=EVALUATIONS[kind])
    if kind != AT_ONCE:
        # A fraction of the first interval gives no answer, but the time of an evaluation.
        sample = Swarm(particles=50, iterations=1)
        part = replace(search.pso, swarm=sample, widths=(5.0,), bound=7.0, threshold=0.0)
        search = replace(search, pso=part)
    return Contestant(
        name_of(2, kind), lambda i: search(case.model, case.shares[i], head=case.head)
    )


def name_of(algorithm: int, kind: str) -> str:
    """Return the name of an algorithm that is evaluated in this way."""
    return f"Alg. {algorithm} {kind}"


def extrapolate(results: Results) -> Results:
    """Return the results with Algorithm 2, one scalar at a time, scaled to a whole run."""
    whole = results[name_of(2, AT_ONCE)]
    partial = {name_of(2, kind) for kind in (AS_PUBLISHED, TENSORS)} & results.keys()
    return {
        name: _scaled(timing, whole) if name in partial else timing
        for name, timing in results.items()
    }


def _scaled(part: Timing[Answer], whole: Timing[Answer]) -> Timing[Answer]:
    """Return the time of a part, scaled to the number of evaluations of the whole."""
    counts = zip(_evaluations(part), _evaluations(whole), strict=False)
    seconds = zip(part.seconds, counts, strict=False)
    return Timing(
        tuple(s * needed / made for s, (made, needed) in seconds), whole.answers, extrapolated=True
    )


def _evaluations(timing: Timing[Answer]) -> list[int]:
    """Return the number of evaluations of each run."""
    return [a.evaluations for a in timing.answers if isinstance(a, ClassicResult)]
