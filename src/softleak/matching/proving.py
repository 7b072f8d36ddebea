"""Run Gauss–Newton on a job of gradient matching: alone, or as the last polish."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.core.errors import ModelError, in_a_line
from softleak.core.results import BatchRecovery, Status
from softleak.core.subject import Subject
from softleak.matching.gauss_newton.equations import BatchKnowledge
from softleak.matching.gauss_newton.method import (
    GaussNewton,
    NewtonSolution,
    described,
    explains,
    solve_from_starts,
)
from softleak.matching.reconstruction import MatchStatus, Reconstruction, Stopping
from softleak.matching.tasks import Image, Job

NEAR_ATTEMPTS = 3  # how many attempts differ in how their steps are damped, not only in their start


@dataclass(frozen=True, eq=False)
class Prover:
    """Solve jobs by Gauss–Newton, one after the other.

    Attributes:
        method: how the equations are solved.
        subject: the model made ready.
        attempts: how often a job is tried, until one attempt explains the share. The first three
            begin at the start if that is near, and differ in how steps are damped.
        stopping: what may end the run.
    """

    method: GaussNewton
    subject: Subject
    attempts: int
    stopping: Stopping

    def run(self, job: Job) -> Reconstruction:
        """Return the best solution over all starts and all labels that may be the true one."""
        found: list[NewtonSolution] = []
        try:
            for known in knowledge_of(job):
                found.append(self._tried(job, known))
        except (ModelError, RuntimeError, NotImplementedError) as error:
            if not found:
                return Reconstruction(MatchStatus.UNFIT, reason=in_a_line(error))
        best = min(found, key=lambda one: one.misfit)
        rivals = [one for one in found if one is not best and explains(one)]
        answer = self._answer(best, job)
        if answer.proved and any(_apart(one, best) for one in rivals):
            reason = "another label explains the share as well, with another image"
            return replace(answer, status=MatchStatus.CONVERGED, reason=reason)
        return answer

    def polish(self, job: Job, matched: Reconstruction) -> Reconstruction:
        """Return the solution near a matched input if it is proved, else the matched input.

        Nothing is tried, and nothing is lost, if the network is not smooth or has too many
        unknowns.
        """
        if matched.input is None or math.prod(job.shape) > self.method.dense:
            return matched
        try:
            if self.method.roughness(self.subject, job.shape):
                return matched
        except Exception:  # the model's own code and torch may raise anything
            return matched
        near = replace(job, start=Image(matched.input.detach()))
        found = self.run(near)
        if found.proved:
            return replace(found, evaluations=matched.evaluations + found.evaluations)
        return replace(matched, certificate=found.certificate)

    def _tried(self, job: Job, known: BatchKnowledge) -> NewtonSolution:
        """Return the best solution over all starts, with one label."""
        starts = [self._drawn(job, attempt) for attempt in range(self.attempts)]
        return solve_from_starts(
            self.method, self.subject, job.share, known, starts, self.stopping, job.start.near
        )

    def _drawn(self, job: Job, attempt: int) -> Tensor:
        """Return inputs (B, …) to begin with, of little contrast unless the start is near."""
        near = job.start.near and attempt < NEAR_ATTEMPTS
        drawn = job.start.draw(job.shape, 0 if near else attempt).double()
        start = drawn if near else drawn * self.method.contrast
        return start if job.batch else start[None]

    def _answer(self, found: NewtonSolution, job: Job) -> Reconstruction:
        """Return a solution as the answer of gradient matching."""
        answer = described(found, self.stopping)
        if job.batch:
            return answer
        told = (answer.input, answer.label, answer.error)
        x, y, error = (None if one is None else one[0] for one in told)
        return replace(answer, input=x, label=y, error=error)


def _apart(one: NewtonSolution, other: NewtonSolution) -> bool:
    """Return whether two solutions are more than their errors apart."""
    error = other.certificate.error
    return error is None or bool(((one.inputs - other.inputs).abs() > 10 * error).any())


def knowledge_of(job: Job) -> Iterator[BatchKnowledge]:
    """Yield what may be known of the sample: one label, or each of an ambiguous recovery."""
    recovery = job.recovery
    if job.batch or isinstance(recovery, BatchRecovery):
        yield _known_batch(job)
        return
    if job.label.free:
        yield BatchKnowledge(job.label.value.softmax(0)[None], math.inf)
        return
    label = job.label.value.double()
    if recovery is None or recovery.label is None or not _same(label, recovery.label):
        yield BatchKnowledge(label[None])
    elif recovery.status is Status.UNIQUE:
        feature = None if recovery.feature is None else recovery.feature[None]
        error = recovery.error if math.isfinite(recovery.error) else math.inf
        yield BatchKnowledge(label[None], error, feature, recovery.feature_error)
    else:
        labels = [label] + [one.label.double() for one in recovery.solutions]
        for i, one in enumerate(labels):
            if not any(_same(one, before) for before in labels[:i]):
                yield BatchKnowledge(one[None], math.inf)


def _known_batch(job: Job) -> BatchKnowledge:
    """Return what is known of a batch; its labels are solved for unless all of them are proved."""
    labels = torch.where(job.label.freed[:, None], job.label.value.softmax(-1), job.label.value)
    found = job.recovery.samples if isinstance(job.recovery, BatchRecovery) else ()
    proved = [one for one in found if one.status is Status.UNIQUE and one.feature is not None]
    if len(proved) < len(labels) or job.label.freed.any():
        given = not found and not job.label.freed.any()
        return BatchKnowledge(labels, 0.0 if given else math.inf)
    features = torch.stack([one.feature for one in proved if one.feature is not None])
    error = max(one.error for one in proved)
    return BatchKnowledge(labels, error, features, max(one.feature_error for one in proved))


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(
        torch.allclose(one.double(), other.double(), atol=1e-6)
    )
