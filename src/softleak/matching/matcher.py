"""A batch of jobs of one kind: several attempts at each, the best of which is carried through."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.core.errors import ModelError
from softleak.matching.gradients import (
    DifferentiableModel,
    OuterProducts,
    count_activations,
    factored,
)
from softleak.matching.optimisers import AttemptSettings, Minimum, Optimiser
from softleak.matching.problems import (
    L2,
    Cosine,
    MatchingProblems,
    Objective,
    Prior,
    TotalVariation,
)
from softleak.matching.reconstruction import MatchStatus, Reconstruction, Stopping
from softleak.matching.tasks import Job, targets


@dataclass(frozen=True)
class MemoryModel:
    """An estimate of what double backpropagation holds of one problem.

    The two factors were measured on LeNet, ResNet18, VGG and ViT.

    Attributes:
        activations: how many copies of all layers' outputs are held.
        parameters: how many copies of the model's parameters are held.
        most_problems: the largest batch; beyond it a batch is not faster.
    """

    activations: int = 12
    parameters: int = 6
    most_problems: int = 64

    def entries(
        self, model: DifferentiableModel, input_shape: tuple[int, ...], optimiser: Optimiser
    ) -> int:
        """Return how many numbers one problem holds in memory.

        ``activations · A + parameters · |θ| + vectors · n``, where ``A`` counts the entries of all
        layers' outputs, and ``n`` the unknowns of a problem.
        """
        weights = sum(p.numel() for p in model.parameters.values())
        unknowns = math.prod(input_shape) + model.head.classes
        return (
            self.activations * count_activations(model, model.like.new_zeros(1, *input_shape))
            + self.parameters * weights
            + optimiser.vectors * unknowns
        )

    def batch_size(
        self, model: DifferentiableModel, input_shape: tuple[int, ...], optimiser: Optimiser,
        memory: int,
    ) -> int:  # fmt: skip
        """Return how many problems fit in ``memory`` bytes, at least one.

        Raises:
            ModelError: if the model does not take an input of this shape.
        """
        size = self.entries(model, input_shape, optimiser) * model.like.element_size()
        return max(1, min(self.most_problems, memory // size))


IMAGE_DIMENSIONS = 3  # (C, H, W)


@dataclass(frozen=True, eq=False)
class BatchMatcher:
    """Everything that the batches of one run have in common.

    Attributes:
        model: the function from input and label to gradient.
        objective: the distance that is minimised.
        priors: penalties of the input; None means the usual ones of its kind.
        optimiser: the way to minimise.
        attempts: how many attempts each job has.
        settings: how the attempts share their evaluations.
        compiled: whether evaluations are compiled.
        memory: how many bytes a batch may take.
        stopping: what may end the run.
    """

    model: DifferentiableModel
    objective: Objective
    priors: Sequence[Prior] | None
    optimiser: Optimiser
    attempts: int
    settings: AttemptSettings
    compiled: bool
    memory: int
    stopping: Stopping

    def run(self, jobs: Sequence[Job]) -> list[Reconstruction]:
        """Return the reconstructions of jobs of one kind, as many at once as memory allows."""
        try:
            share = self.memory // math.prod(jobs[0].batch)
            fit = MemoryModel().batch_size(self.model, jobs[0].sample_shape, self.optimiser, share)
        except ModelError as error:  # the shares say a shape that the model does not take
            return [Reconstruction(MatchStatus.UNFIT, reason=str(error)) for _ in jobs]
        size = max(1, fit // self.attempts)
        parts = (jobs[i : i + size] for i in range(0, len(jobs), size))
        return [found for part in parts for found in self._batch(part)]

    def _batch(self, jobs: Sequence[Job]) -> list[Reconstruction]:
        """Return the reconstructions of jobs that fit in memory together."""
        problems = self._problems(jobs)
        found = self._begun(problems, jobs) if jobs[0].start.near else {}
        rows = [
            i for i, job in enumerate(jobs) if i not in found or not self._explains(found[i], job)
        ]
        if rows:
            chosen = problems.select(torch.tensor(rows, device=problems.targets.label.device))
            minimum = self._minimise(chosen, [jobs[i] for i in rows])
            for i, result in zip(rows, _results(chosen, minimum), strict=True):
                found[i] = self._better(found.get(i), result, jobs[i])
        return [found[i] for i in range(len(jobs))]

    def _problems(self, jobs: Sequence[Job]) -> MatchingProblems:
        """Return the jobs as rows of one function."""
        names = tuple(name for name in self.model.parameters if name in jobs[0].share)
        priors = _usual(jobs[0]) if self.priors is None else self.priors
        outer, factors = self._outer(jobs)
        return MatchingProblems(
            self.model, names, self.objective, priors, jobs[0].shape,
            targets(jobs, names, self.model, factors), self.compiled, outer,
        )  # fmt: skip

    def _outer(self, jobs: Sequence[Job]) -> tuple[OuterProducts | None, dict[str, Tensor]]:
        """Return the layers whose gradients are outer products, and the factors of what was sent.

        There are none for a batch of samples, nor for an objective that looks at single entries.
        """
        unfit = bool(jobs[0].batch) or bool(self.objective.beta) or self.compiled
        if unfit or type(self.objective) not in (L2, Cosine):
            return None, {}
        able = OuterProducts.of(self.model, jobs[0].shape)
        sent = {name: f"{name}.weight" for name in able.layers}
        found = {
            name: factored([job.share[weight] for job in jobs])
            for name, weight in sent.items()
            if weight in jobs[0].share
        }
        factors = {sent[name]: rows for name, rows in found.items() if rows is not None}
        layers = tuple(name for name in able.layers if sent[name] in factors)
        return (replace(able, layers=layers) if layers else None), factors

    def _begun(self, problems: MatchingProblems, jobs: Sequence[Job]) -> dict[int, Reconstruction]:
        """Return the starts as if they were answers."""
        start = _starts(problems, jobs, 0)
        losses, _ = replace(problems, compiled=False).evaluator()(start)
        told = zip(jobs, problems.labels(start), losses, problems.misfits(start), strict=True)
        return {
            i: Reconstruction(
                MatchStatus.EXPLAINED, job.start.draw(job.shape, 0), label, _finite(loss),
                _finite(misfit), evaluations=1,
            )
            for i, (job, label, loss, misfit) in enumerate(told)
        }  # fmt: skip

    def _unexplained(self, job: Job) -> float:
        """Return the misfit that rounding, or noise the share is known to carry, may cause."""
        eps = torch.finfo(self.model.like.dtype).eps
        return max(self.settings.rounding * eps, job.noise)

    def _explains(self, start: Reconstruction, job: Job) -> bool:
        """Return whether a start leaves nothing to explain: going on could only fit rounding."""
        return start.misfit < self._unexplained(job)

    def _better(
        self, start: Reconstruction | None, result: Reconstruction, job: Job
    ) -> Reconstruction:
        """Return the result, or the start if the result gained no more on it than rounding may."""
        if start is None or result.misfit < start.misfit - self._unexplained(job):
            return result
        return replace(start, status=result.status, evaluations=result.evaluations)

    def _minimise(self, problems: MatchingProblems, jobs: Sequence[Job]) -> Minimum:
        """Return the best of all attempts at each job."""
        starts = [_starts(problems, jobs, attempt) for attempt in range(self.attempts)]
        return self.settings.minimise(self.optimiser, problems, starts, self.stopping)


def _usual(job: Job) -> Sequence[Prior]:
    """Return the usual priors: images are smooth, unless the start is near already."""
    image = len(job.sample_shape) == IMAGE_DIMENSIONS
    return (TotalVariation(),) if image and not job.start.near else ()


def _starts(problems: MatchingProblems, jobs: Sequence[Job], attempt: int) -> Tensor:
    """Return the unknowns (P, n) that an attempt begins with."""
    like = problems.targets.label
    inputs = torch.stack([job.start.draw(job.shape, attempt).to(like) for job in jobs])
    logits = torch.stack([job.label.logits.to(like) for job in jobs])
    return problems.pack(inputs, logits)


def _results(problems: MatchingProblems, minimum: Minimum) -> list[Reconstruction]:
    """Return what an optimiser found as reconstructions."""
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
    """Return a number, or infinity in place of NaN."""
    return float(value) if math.isfinite(value) else math.inf
