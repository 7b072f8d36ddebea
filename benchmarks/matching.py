"""Part three, gradient matching: a batch of problems against a loop over them.

It prints ratios and no seconds: `python -m benchmarks.matching`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import softleak as sl
from benchmarks.goals import Goal, goals_table, ratio
from benchmarks.optimisers import by_cosine, match
from benchmarks.timing import Contestant, race
from softleak.audit.metrics import psnr
from softleak.core.subject import Subject
from softleak.matching import Adam, Cosine, Noise, RecoveredLabel, TotalVariation, reconstruct_many
from softleak.matching.problems import DifferentiableModel, MatchingProblems
from softleak.matching.tasks import Job, job_of, targets
from softleak.paper import data, models

LOOP, BATCH, COMPILED = "a loop over images", "one batch", "one batch, compiled before"
COUNT, STEPS, ROUNDS, SMOOTH = 32, 50, 3, 1e-2


@dataclass(frozen=True, eq=False)
class Case:
    """A model, what its clients sent, and what was recovered.

    Attributes:
        model: the classifier.
        samples: the truth behind each share.
        shares: what each client sent.
        recoveries: the recovered label of each share.
    """

    model: nn.Module
    samples: list[data.Sample]
    shares: list[sl.GradientShare]
    recoveries: list[sl.Recovery]

    @classmethod
    def of(cls, model: nn.Module) -> Case:
        """Return the case of a model, with mixed samples of the embedded images."""
        drawn = list(data.samples(data.embedded(), data.Mixup(), COUNT, 1, data.CIFAR10_NORM))
        shares = [sl.capture(model, sample.x, sample.y) for sample in drawn]
        return cls(model, drawn, shares, list(sl.recover_labels(model, shares)))

    def loop(self, _: int) -> list[Tensor]:
        """Match one image at a time with plain autograd."""
        pairs = zip(self.shares, self.recoveries, strict=True)
        way = by_cosine(SMOOTH, STEPS)
        return [match(self.model, s, r.label, way) for s, r in pairs if r.label is not None]

    def batch(self, _: int) -> list[Tensor]:
        """Match all images in one batch."""
        found = reconstruct_many(
            self.model, self.shares, self.recoveries, objective=Cosine(),
            optimiser=Adam(steps=STEPS), priors=[TotalVariation(SMOOTH)],
        )  # fmt: skip
        return [result.input for result in found if result.input is not None]

    def evaluations(self, compiled: bool) -> Callable[[int], list[Tensor]]:
        """Return a function that does the batch's evaluations without the steps between them."""
        evaluate = replace(self.problems, compiled=compiled).evaluator()
        start = torch.randn(COUNT, 3 * 32 * 32 + 10)

        def run(_: int) -> list[Tensor]:
            return [evaluate(start)[0] for _ in range(STEPS)]

        return run

    @cached_property
    def problems(self) -> MatchingProblems:
        """Return the matching problems of all shares."""
        subject = Subject(self.model, sl.Head.of(self.model))
        pairs = zip(self.shares, self.recoveries, strict=True)
        jobs = [job_of(subject, Cosine(), s, r, RecoveredLabel(), Noise()) for s, r in pairs]
        model = DifferentiableModel.of(self.model, subject.head, torch.float32)
        names = tuple(self.shares[0])
        sent = targets([job for job in jobs if isinstance(job, Job)], names, model)
        priors = [TotalVariation(SMOOTH)]
        return MatchingProblems(model, names, Cosine(), priors, (3, 32, 32), sent)

    def quality(self, found: list[Tensor]) -> float:
        """Return the mean PSNR of recovered inputs in dB."""
        undo = data.CIFAR10_NORM.invert
        pairs = zip(found, self.samples, strict=True)
        return mean(psnr(undo(image), undo(sample.x)) for image, sample in pairs)


def run(console: Console) -> list[Goal]:
    """Time both, print the table and return the goal."""
    torch.manual_seed(0)
    case = Case.of(models.uniform_(models.lenet()))
    runs: dict[str, Callable[[int], list[Tensor]]] = {LOOP: case.loop, BATCH: case.batch}
    runs |= {"eager": case.evaluations(compiled=False), COMPILED: case.evaluations(compiled=True)}
    results = race([Contestant(name, each, budget=60) for name, each in runs.items()], ROUNDS)
    # What compiling saves of an evaluation, on top of what the batch saves.
    batch = results[LOOP].over(results[BATCH])
    saved = results["eager"].over(results[COMPILED])
    table = Table(
        "", "images per second / the loop's", f"mean PSNR after {STEPS} steps",
        title=f"Gradient matching, LeNet, {COUNT} problems, one thread",
    )  # fmt: skip
    table.add_row(LOOP, "1", f"{case.quality(results[LOOP].answers[0]):.2f} dB")
    table.add_row(BATCH, ratio(batch), f"{case.quality(results[BATCH].answers[0]):.2f} dB")
    table.add_row(COMPILED, ratio(batch * saved), "as above")
    console.print(table)
    return [Goal("matching: 32 problems in one batch / a loop", batch, 4)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    screen = Console()
    screen.print(goals_table(run(screen)))
