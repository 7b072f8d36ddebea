"""Interleaved runs, compared round by round: what disturbs one contestant disturbs all alike.

Processor time, not the clock's: on a shared machine the turns of others do not count.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Contestant(Generic[Answer]):
    """Something to time. ``run`` is given the number of the round.

    It runs in no further round once ``budget`` seconds are spent on it.
    """

    name: str
    run: Callable[[int], Answer]
    budget: float = 8.0


@dataclass(frozen=True)
class Timing(Generic[Answer]):
    """The seconds of one run and its answer, round by round."""

    seconds: tuple[float, ...]
    answers: tuple[Answer, ...]
    extrapolated: bool = False

    def over(self, other: Timing[Answer]) -> float:
        """How many times as long as another: the median of the rounds both have run."""
        return median(a / b for a, b in zip(self.seconds, other.seconds, strict=False))


def race(contestants: Sequence[Contestant[Answer]], rounds: int = 24) -> dict[str, Timing[Answer]]:
    """Warm up, then run all contestants in turn, round after round."""
    spent: dict[str, list[float]] = defaultdict(list)
    answers: dict[str, list[Answer]] = defaultdict(list)
    for contestant in contestants:
        contestant.run(0)
    for number in range(rounds):
        for contestant in contestants:
            name = contestant.name
            if sum(spent[name]) > contestant.budget:
                continue
            seconds, answer = timed(partial(contestant.run, number))
            spent[name].append(seconds)
            answers[name].append(answer)
    return {name: Timing(tuple(spent[name]), tuple(answers[name])) for name in spent}


def timed(run: Callable[[], Answer]) -> tuple[float, Answer]:
    """The seconds of a single run, for what takes too long to repeat, and its answer."""
    start = time.process_time()
    answer = run()
    return time.process_time() - start, answer
