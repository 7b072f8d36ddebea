"""A batch of jobs of one kind: several attempts at each, the best of which is carried through."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    solve_from_starts,
)
from softleak.matching.optimisers import AttemptSettings, Minimum, Optimiser
from softleak.matching.problems import (
    L2,
    Cosine,
    DifferentiableModel,
    MatchingProblems,
    Objective,
    OuterProducts,
    Prior,
    TotalVariation,
    count_activations,
    factored,
)
from softleak.matching.reconstruction import Reconstruction, Stopping
from softleak.matching.tasks import Image, Job, targets

NEAR_ATTEMPTS = 3  # how many attempts differ in how their steps are damped, not only in their start


@dataclass(frozen=True, eq=False)
class Prover:
    """Solve jobs by Gauss–Newton, one after the other."""

    method: GaussNewton  # how the equations are solved
    subject: Subject  # the model made ready
    attempts: int  # at each job, until one explains the share; three begin at a near start
    stopping: Stopping  # what may end the run

    def run(self, job: Job) -> Reconstruction:
        """Return the best solution over all starts and all labels that may be the true one."""
        found: list[NewtonSolution] = []
        try:
            for known in knowledge_of(job):
                starts = [self._drawn(job, attempt) for attempt in range(self.attempts)]
                found.append(
                    solve_from_starts(
                        self.method, self.subject, job.share, known, starts, self.stopping,
                        job.start.near,
                    )
                )  # fmt: skip
        except (ModelError, RuntimeError, NotImplementedError) as error:
            if not found:
                return Reconstruction(Status.UNFIT, reason=in_a_line(error))
        best = min(found, key=lambda one: one.misfit)
        rivals = [one for one in found if one is not best and one.explained]
        answer = self._answer(best, job)
        if answer.proved and any(_apart(one, best) for one in rivals):
            reason = "another label explains the share as well, with another image"
            return replace(answer, status=Status.CONVERGED, reason=reason)
        return answer

    def polish(self, job: Job, matched: Reconstruction) -> Reconstruction:
        """Return the solution near a matched input if it is proved, else the matched input."""
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

    def _drawn(self, job: Job, attempt: int) -> Tensor:
        """Return inputs (B, …) to begin with, of little contrast unless the start is near."""
        near = job.start.near and attempt < NEAR_ATTEMPTS
        drawn = job.start.draw(job.shape, 0 if near else attempt).double()
        start = drawn if near else drawn * self.method.contrast
        return start if job.batch else start[None]

    def _answer(self, found: NewtonSolution, job: Job) -> Reconstruction:
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
    alike = one.shape == other.shape
    return alike and torch.allclose(one.double(), other.double(), atol=1e-6)


# What double backpropagation holds of a problem, measured on LeNet, ResNet18, VGG and ViT: copies
# of all layers' outputs, and of the model's parameters.
ACTIVATION_COPIES, PARAMETER_COPIES = 12, 6
MOST_PROBLEMS = 64  # the largest batch; beyond it a batch is not faster


def entries(model: DifferentiableModel, input_shape: tuple[int, ...], optimiser: Optimiser) -> int:
    """Return how many numbers one problem holds in memory."""
    A = count_activations(model, model.like.new_zeros(1, *input_shape))
    weights = sum(p.numel() for p in model.parameters.values())
    n = math.prod(input_shape) + model.head.classes
    return ACTIVATION_COPIES * A + PARAMETER_COPIES * weights + optimiser.vectors * n


def batch_size(
    model: DifferentiableModel, input_shape: tuple[int, ...], optimiser: Optimiser, memory: int
) -> int:
    """Return how many problems fit in ``memory`` bytes, at least one."""
    size = entries(model, input_shape, optimiser) * model.like.element_size()
    return max(1, min(MOST_PROBLEMS, memory // size))


IMAGE_DIMENSIONS = 3  # (C, H, W)


@dataclass(frozen=True, eq=False)
class BatchMatcher:
    """Everything that the batches of one run have in common."""

    model: DifferentiableModel  # the function from input and label to gradient
    objective: Objective  # the distance that is minimised
    priors: Sequence[Prior] | None  # penalties of the input; None means the usual ones of its kind
    optimiser: Optimiser  # the way to minimise
    attempts: int  # how many attempts each job has
    settings: AttemptSettings  # how the attempts share their evaluations
    compiled: bool  # whether evaluations are compiled
    memory: int  # how many bytes a batch may take
    stopping: Stopping  # what may end the run

    def run(self, jobs: Sequence[Job]) -> list[Reconstruction]:
        """Return the reconstructions of jobs of one kind, as many at once as memory allows."""
        try:
            share = self.memory // math.prod(jobs[0].batch)
            fit = batch_size(self.model, jobs[0].sample_shape, self.optimiser, share)
        except ModelError as error:  # the shares say a shape that the model does not take
            return [Reconstruction(Status.UNFIT, reason=str(error)) for _ in jobs]
        size = max(1, fit // self.attempts)
        parts = (jobs[i : i + size] for i in range(0, len(jobs), size))
        return [found for part in parts for found in self._batch(part)]

    def _batch(self, jobs: Sequence[Job]) -> list[Reconstruction]:
        """Return the reconstructions of jobs that fit in memory together."""
        problems = self._problems(jobs)
        found = self._begun(problems, jobs) if jobs[0].start.near else {}
        # A start that leaves nothing to explain is kept: going on could only fit rounding.
        rows = [
            i for i, job in enumerate(jobs)
            if i not in found or not found[i].misfit < self._unexplained(job)
        ]  # fmt: skip
        if rows:
            chosen = problems.select(torch.tensor(rows, device=problems.targets.label.device))
            some = [jobs[i] for i in rows]
            starts = [_starts(chosen, some, attempt) for attempt in range(self.attempts)]
            minimum = self.settings.minimise(self.optimiser, chosen, starts, self.stopping)
            for i, result in zip(rows, _results(chosen, minimum), strict=True):
                found[i] = self._better(found.get(i), result, jobs[i])
        return [found[i] for i in range(len(jobs))]

    def _problems(self, jobs: Sequence[Job]) -> MatchingProblems:
        """Return the jobs as rows of one function."""
        names = tuple(name for name in self.model.parameters if name in jobs[0].share)
        # Images are smooth; from a start that is near already a prior only harms.
        smooth = len(jobs[0].sample_shape) == IMAGE_DIMENSIONS and not jobs[0].start.near
        usual = (TotalVariation(),) if smooth else ()
        priors = usual if self.priors is None else self.priors
        outer, factors = self._outer(jobs)
        return MatchingProblems(
            self.model, names, self.objective, priors, jobs[0].shape,
            targets(jobs, names, self.model, factors), self.compiled, outer,
        )  # fmt: skip

    def _outer(self, jobs: Sequence[Job]) -> tuple[OuterProducts | None, dict[str, Tensor]]:
        """Return the layers whose gradients are outer products, and the factors of those sent."""
        unfit = bool(jobs[0].batch) or bool(self.objective.beta) or self.compiled
        if unfit or type(self.objective) not in (L2, Cosine):
            return None, {}
        able = OuterProducts.of(self.model, jobs[0].shape)
        factors = {
            weight: rows
            for weight in sorted(able.weights & jobs[0].share.keys())
            if (rows := factored([job.share[weight] for job in jobs])) is not None
        }
        layers = tuple(name for name in able.layers if f"{name}.weight" in factors)
        return (replace(able, layers=layers) if layers else None), factors

    def _begun(self, problems: MatchingProblems, jobs: Sequence[Job]) -> dict[int, Reconstruction]:
        start = _starts(problems, jobs, 0)
        losses, _ = replace(problems, compiled=False).evaluator()(start)
        told = zip(jobs, problems.labels(start), losses, problems.misfits(start), strict=True)
        return {
            i: Reconstruction(
                Status.EXPLAINED, job.start.draw(job.shape, 0), label, _finite(loss),
                _finite(misfit), evaluations=1,
            )
            for i, (job, label, loss, misfit) in enumerate(told)
        }  # fmt: skip

    def _unexplained(self, job: Job) -> float:
        """Return the misfit that rounding, or noise the share is known to carry, may cause."""
        eps = torch.finfo(self.model.like.dtype).eps
        return max(self.settings.rounding * eps, job.noise)

    def _better(
        self, start: Reconstruction | None, result: Reconstruction, job: Job
    ) -> Reconstruction:
        """Return the result, or the start if the result gained no more on it than rounding may."""
        if start is None or result.misfit < start.misfit - self._unexplained(job):
            return result
        return replace(start, status=result.status, evaluations=result.evaluations)


def _starts(problems: MatchingProblems, jobs: Sequence[Job], attempt: int) -> Tensor:
    """Return the unknowns (P, n) that an attempt begins with."""
    like = problems.targets.label
    inputs = torch.stack([job.start.draw(job.shape, attempt).to(like) for job in jobs])
    logits = torch.stack([job.label.logits.to(like) for job in jobs])
    return problems.pack(inputs, logits)


def _results(problems: MatchingProblems, minimum: Minimum) -> list[Reconstruction]:
    labels = problems.labels(minimum.unknowns)
    inputs, missed = problems.inputs(minimum.unknowns), problems.misfits(minimum.unknowns)
    return [
        Reconstruction(
            status, inputs[i], labels[i],
            _finite(minimum.loss[i]), _finite(missed[i]), int(minimum.evaluations[i]),
        )
        for i, status in enumerate(minimum.statuses)
    ]  # fmt: skip


def _finite(value: Tensor | float) -> float:
    return float(value) if math.isfinite(value) else math.inf
