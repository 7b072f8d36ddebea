"""A batch of jobs of one kind: several attempts at each, the best one carried through."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.matching.budget import at_once
from softleak.matching.jobs import Job, targets
from softleak.matching.minimum import STATUSES, Minimum, Optimiser
from softleak.matching.network import Network
from softleak.matching.objectives import L2, Objective
from softleak.matching.priors import Prior, TotalVariation
from softleak.matching.problems import Problems
from softleak.matching.results import MatchStatus, Reconstruction
from softleak.matching.watch import Watch

IMAGE = 3  # dimensions
TRIAL = 0.1  # of the evaluations: what each of several attempts has before the best goes on
MOST = 9  # attempts
EXPLAINED = 16.0  # roundings: a misfit that says nothing against a start


@dataclass(frozen=True, eq=False)
class Runner:
    """How every batch of a call is run."""

    network: Network
    objective: Objective
    priors: Sequence[Prior] | None
    optimiser: Optimiser
    attempts: int
    compiled: bool
    memory: int
    watch: Watch

    def run(self, jobs: Sequence[Job]) -> list[Reconstruction]:
        """Reconstructions of jobs of one kind, as many at once as memory allows."""
        fit = at_once(self.network, jobs[0].shape, self.optimiser, self.memory)
        size = max(1, fit // self.attempts)
        parts = (jobs[i : i + size] for i in range(0, len(jobs), size))
        return [found for part in parts for found in self._batch(part)]

    def _batch(self, jobs: Sequence[Job]) -> list[Reconstruction]:
        near = jobs[0].start.near
        names = tuple(name for name in self.network.parameters if name in jobs[0].share)
        priors = _usual(jobs[0]) if self.priors is None else self.priors
        problems = Problems(
            self.network, names, self.objective, priors, jobs[0].shape,
            targets(jobs, names, self.network), self.compiled,
        )  # fmt: skip
        found = self._begun(problems, jobs) if near else {}
        rows = [
            i for i, job in enumerate(jobs) if i not in found or not self._explains(found[i], job)
        ]
        if rows:
            chosen = problems.select(torch.tensor(rows, device=problems.targets.label.device))
            minimum = self._minimise(chosen, [jobs[i] for i in rows])
            for i, result in zip(rows, _results(chosen, minimum), strict=True):
                found[i] = self._better(found.get(i), result, jobs[i])
        return [found[i] for i in range(len(jobs))]

    def _begun(self, problems: Problems, jobs: Sequence[Job]) -> dict[int, Reconstruction]:
        """The starts as if they were answers."""
        start = _starts(problems, jobs, 0)
        losses, _ = replace(problems, compiled=False).evaluator()(start)
        told = zip(jobs, problems.labels(start), losses, _misfits(problems, start), strict=True)
        return {
            i: Reconstruction(
                MatchStatus.EXPLAINED, job.start.draw(job.shape, 0), label, _finite(loss),
                _finite(misfit), evaluations=1,
            )
            for i, (job, label, loss, misfit) in enumerate(told)
        }  # fmt: skip

    def _unexplained(self, job: Job) -> float:
        """The misfit that rounding, or noise the share is known to carry, leaves of the truth."""
        dtype = next(iter(self.network.parameters.values())).dtype
        return max(EXPLAINED * torch.finfo(dtype).eps, job.noise)

    def _explains(self, start: Reconstruction, job: Job) -> bool:
        """Whether a start leaves nothing to explain: going on could only fit the rounding."""
        return start.misfit < self._unexplained(job)

    def _better(
        self, start: Reconstruction | None, result: Reconstruction, job: Job
    ) -> Reconstruction:
        """The result, unless it gained no more on the start than rounding may."""
        if start is None or result.misfit < start.misfit - self._unexplained(job):
            return result
        return replace(start, status=result.status, evaluations=result.evaluations)

    def _minimise(self, problems: Problems, jobs: Sequence[Job]) -> Minimum:
        """All attempts for a while, then the best of each job to the end."""
        first = _starts(problems, jobs, 0)
        if self.attempts == 1:
            return self.optimiser.minimise(problems, first, self.watch)
        rows = torch.arange(len(jobs), device=first.device)
        starts = [first, *(_starts(problems, jobs, a) for a in range(1, self.attempts))]
        trial = self.optimiser.part(0.0, TRIAL)
        tried = trial.minimise(
            problems.select(rows.repeat(self.attempts)), torch.cat(starts), self.watch
        )
        best = tried.loss.nan_to_num(torch.inf).view(self.attempts, -1).argmin(0)
        rest = self.optimiser.part(TRIAL * self.attempts, 1.0)
        minimum = rest.minimise(problems, tried.unknowns[best * len(jobs) + rows], self.watch)
        spent = tried.evaluations.view(self.attempts, -1).sum(0)
        return replace(minimum, evaluations=minimum.evaluations + spent)


def _usual(job: Job) -> Sequence[Prior]:
    """Images are smooth, of other inputs nothing is known; from a near start a prior would harm."""
    return (TotalVariation(),) if len(job.shape) == IMAGE and not job.start.near else ()


def _starts(problems: Problems, jobs: Sequence[Job], attempt: int) -> Tensor:
    """The unknowns (P, n) an attempt begins with."""
    like = problems.targets.label
    inputs = torch.stack([job.start.draw(job.shape, attempt).to(like) for job in jobs])
    logits = torch.stack([job.label.logits.to(like) for job in jobs])
    return problems.pack(inputs, logits)


def _misfits(problems: Problems, unknowns: Tensor) -> list[float]:
    """What remains of each gradient, relative to its size, priors and features left aside."""
    alone = replace(problems, objective=L2(), priors=(), compiled=False)
    loss, _ = alone.evaluator()(unknowns)
    sizes = torch.stack([g.flatten(1).square().sum(1) for g in problems.targets.gradients])
    return (loss / sizes.sum(0)).sqrt().tolist()


def _results(problems: Problems, minimum: Minimum) -> list[Reconstruction]:
    labels = problems.labels(minimum.unknowns)
    inputs, misfits = problems.inputs(minimum.unknowns), _misfits(problems, minimum.unknowns)
    return [
        Reconstruction(
            STATUSES[int(ending)], inputs[i], labels[i],
            _finite(minimum.loss[i]), _finite(misfits[i]), int(minimum.evaluations[i]),
        )
        for i, ending in enumerate(minimum.ending)
    ]  # fmt: skip


def _finite(value: Tensor | float) -> float:
    return float(value) if math.isfinite(value) else math.inf
