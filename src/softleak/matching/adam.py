"""This module holds Adam for many problems at once: the paper's optimiser for the cosine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.matching.minimum import STATUSES, Minimum
from softleak.matching.problems import MatchingProblems
from softleak.matching.reconstruction import MatchStatus
from softleak.matching.stopping import Stopping


@dataclass(frozen=True)
class Adam:
    """This is Adam with a learning rate that falls in steps; one evaluation per step.

    Attributes:
        lr: the learning rate at the beginning.
        steps: the number of steps of the whole schedule.
        first: the fraction of the schedule at which this optimiser begins.
        last: the fraction at which it ends.
        decay_at: the fractions of the schedule at which the learning rate falls.
        decay: the factor by which it falls.
        betas: the decay rates of the means of the gradient and of its square.
        epsilon: what is added to the root of the mean square.
    """

    lr: float = 0.1
    steps: int = 4800
    first: float = 0.0
    last: float = 1.0
    decay_at: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)
    decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    @property
    def vectors(self) -> int:
        return 6

    @property
    def evaluations(self) -> int:
        return round(self.steps * self.last) - round(self.steps * self.first)

    def part(self, first: float, last: float) -> Adam:
        return replace(self, first=first, last=last)

    def minimise(self, problems: MatchingProblems, start: Tensor, stopping: Stopping) -> Minimum:
        """Minimise; a problem whose loss is no longer finite stays where it was."""
        evaluate = problems.evaluator()
        x, mean, square = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
        best = start.clone()
        lowest = torch.full_like(start[:, 0], torch.inf)
        count = torch.zeros(len(start), dtype=torch.long, device=start.device)
        sound = torch.ones_like(lowest, dtype=torch.bool)
        begin = round(self.steps * self.first)
        for step in range(begin, begin + self.evaluations):
            if stopping.over or not bool(sound.any()):
                break
            loss, slope = evaluate(x)
            count += sound
            sound = sound & loss.isfinite() & slope.isfinite().all(1)
            better = sound & (loss < lowest)
            lowest = torch.where(better, loss, lowest)
            best = torch.where(better[:, None], x, best)
            mean.lerp_(slope, 1 - self.betas[0])
            square.lerp_(slope.square(), 1 - self.betas[1])
            number = step - begin + 1
            root = (square / (1 - self.betas[1] ** number)).sqrt_().add_(self.epsilon)
            moved = self.rate(step) * mean / (1 - self.betas[0] ** number) / root
            x = torch.where(sound[:, None], x - moved, x)
            stopping.tell(len(start), lowest, int(sound.sum()))
        index = torch.where(
            sound, STATUSES.index(stopping.ended), STATUSES.index(MatchStatus.DIVERGED)
        )
        return Minimum(best, lowest, count, index)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from the beginning of the schedule."""
        falls = sum(step >= fall * self.steps for fall in self.decay_at)
        return float(self.lr * self.decay**falls)
