"""Adam, many problems at once: the paper's optimiser for the cosine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.matching.minimum import STATUSES, Minimum
from softleak.matching.problems import Problems
from softleak.matching.results import MatchStatus
from softleak.matching.watch import Watch

FALLS = (3 / 8, 5 / 8, 7 / 8)  # of the steps, after which the learning rate is a tenth
KEPT = (0.9, 0.999)
TINY = 1e-8


@dataclass(frozen=True)
class Adam:
    """A step an evaluation, from ``first`` to ``last``, both parts of one."""

    lr: float = 0.1
    steps: int = 4800
    first: float = 0.0
    last: float = 1.0

    @property
    def vectors(self) -> int:
        return 6

    @property
    def evaluations(self) -> int:
        return round(self.steps * self.last) - round(self.steps * self.first)

    def part(self, first: float, last: float) -> Adam:
        return replace(self, first=first, last=last)

    def minimise(self, problems: Problems, start: Tensor, watch: Watch) -> Minimum:
        """Problems whose loss is no longer finite stay where they were."""
        evaluate = problems.evaluator()
        x, mean, square = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
        best = start.clone()
        lowest = torch.full_like(start[:, 0], torch.inf)
        count = torch.zeros(len(start), dtype=torch.long, device=start.device)
        sound = torch.ones_like(lowest, dtype=torch.bool)
        begin = round(self.steps * self.first)
        for step in range(begin, begin + self.evaluations):
            if watch.over or not bool(sound.any()):
                break
            loss, slope = evaluate(x)
            count += sound
            sound = sound & loss.isfinite() & slope.isfinite().all(1)
            better = sound & (loss < lowest)
            lowest = torch.where(better, loss, lowest)
            best = torch.where(better[:, None], x, best)
            mean.lerp_(slope, 1 - KEPT[0])
            square.lerp_(slope.square(), 1 - KEPT[1])
            number = step - begin + 1
            root = (square / (1 - KEPT[1] ** number)).sqrt_().add_(TINY)
            moved = self._rate(step) * mean / (1 - KEPT[0] ** number) / root
            x = torch.where(sound[:, None], x - moved, x)
            watch.tell(len(start), lowest, int(sound.sum()))
        index = torch.where(
            sound, STATUSES.index(watch.ended), STATUSES.index(MatchStatus.DIVERGED)
        )
        return Minimum(best, lowest, count, index)

    def _rate(self, step: int) -> float:
        return float(self.lr * 0.1 ** sum(step >= fall * self.steps for fall in FALLS))
