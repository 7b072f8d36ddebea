"""Medians of interleaved runs: what disturbs one contestant disturbs all alike."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Contestant(Generic[Answer]):
    """Something to time. ``run`` is given the number of the round.

    It runs ``inner`` times in each round, and in no further round once ``budget`` seconds are
    spent on it.
    """

    name: str
    run: Callable[[int], Answer]
    inner: int = 1
    budget: float = 4.0


@dataclass(frozen=True)
class Timing(Generic[Answer]):
    """The median time of one run, and the answer of each round."""

    seconds: float
    answers: tuple[Answer, ...]
    extrapolated: bool = False


def race(contestants: Sequence[Contestant[Answer]], rounds: int = 24) -> dict[str, Timing[Answer]]:
    """Run all contestants in turn, round after round."""
    spent: dict[str, list[float]] = defaultdict(list)
    answers: dict[str, list[Answer]] = defaultdict(list)
    for number in range(rounds):
        for contestant in contestants:
            name = contestant.name
            if sum(spent[name]) > contestant.budget:
                continue
            start = time.perf_counter()
            for _ in range(contestant.inner):
                answer = contestant.run(number)
            spent[name].append(time.perf_counter() - start)
            answers[name].append(answer)
    return {
        c.name: Timing(median(spent[c.name]) / c.inner, tuple(answers[c.name])) for c in contestants
    }
