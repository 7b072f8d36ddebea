"""Interleaved runs that are compared round by round, so that a disturbance hits all alike.

Times are processor time, so that other processes on a shared machine do not count.
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
    """Something to time.

    Attributes:
        name: its name in tables.
        run: the function to time, which is given the number of the round.
        budget: the seconds after which it runs in no further round.
    """

    name: str
    run: Callable[[int], Answer]
    budget: float = 8.0


@dataclass(frozen=True)
class Timing(Generic[Answer]):
    """What the rounds of one contestant took.

    Attributes:
        seconds: the processor time of each round.
        answers: the answer of each round.
        extrapolated: whether the times were scaled from a part of the work.
    """

    seconds: tuple[float, ...]
    answers: tuple[Answer, ...]
    extrapolated: bool = False

    def over(self, other: Timing[Answer]) -> float:
        """Return the time as a multiple of another's: the median over the rounds that both ran."""
        return median(a / b for a, b in zip(self.seconds, other.seconds, strict=False))


def race(contestants: Sequence[Contestant[Answer]], rounds: int = 24) -> dict[str, Timing[Answer]]:
    """Run all contestants once to warm up, and then in turn, round after round."""
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
    """Return the seconds of a single run and its answer, for what takes too long to repeat."""
    start = time.process_time()
    answer = run()
    return time.process_time() - start, answer
