"""A stranger made ready: its model, its clients' inputs, and the cases drawn for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from benchmarks.adversary.client import Client, Sample
from benchmarks.adversary.labels import LABELS
from benchmarks.adversary.questions import Question, draw
from benchmarks.adversary.stranger import Stranger, number_of
from benchmarks.adversary.training import pool
from benchmarks.adversary.truth import Made
from benchmarks.adversary.ways import WAYS, Way
from benchmarks.adversary.zoo import ZOO

RARE = 3


@dataclass(frozen=True)
class Plan:
    """Which share to make: everything about it follows from these and the seed."""

    way: Way
    kind: str
    number: int


@dataclass(frozen=True, eq=False)
class Case:
    """A share, the truth about it, and what is asked of it."""

    plan: Plan
    made: Made
    question: Question

    @property
    def told(self) -> bool:
        """Whether the library was told that the scale is unknown."""
        return "unknown" in (self.question.scale, self.made.share.scale)


@dataclass(frozen=True, eq=False)
class Subject:
    """A stranger and the seed of everything that is drawn for it."""

    stranger: Stranger
    seed: int = 0

    @cached_property
    def model(self) -> nn.Module:
        return self.stranger.make(self.seed)

    @cached_property
    def inputs(self) -> Tensor:
        with torch.no_grad():
            example = torch.zeros(2, *self.stranger.shape, dtype=self.stranger.dtype)
            classes = self.model(example).shape[-1]
        return pool(self.stranger.shape, classes, number_of(self.seed, self.stranger.name))

    def plans(self) -> Iterator[Plan]:
        """All ways in random order, again and again, each time with other labels.

        Noisy ones, which take ten times as long and are never proofs, in every third round.
        """
        chance = random.Random(number_of(self.seed, self.stranger.name, "plans"))
        kinds = {way: chance.sample(list(LABELS), len(LABELS)) for way in WAYS}
        number = 0
        while True:
            for way in chance.sample(WAYS, len(WAYS)):
                if way.noisy and number % RARE:
                    continue
                yield Plan(way, kinds[way][number % len(LABELS)], number)
            number += 1

    def case(self, plan: Plan) -> Case:
        """The share of a plan, and a question about it."""
        own = number_of(self.seed, self.stranger.name, plan.way.name, plan.kind, plan.number)
        client = Client(self.model, self.stranger.dtype, own)
        generator = torch.Generator().manual_seed(own)
        taken: set[int] = set()
        sample = self._sample(client, plan.kind, plan.way.size, generator, taken)
        other = self._sample(client, plan.kind, 1, generator, taken)
        made = plan.way.make(client, sample, other)
        made = replace(made, share=replace(made.share, input_shape=self.stranger.shape))
        question = draw(random.Random(own), plan.kind, made.truth, made.share.scale is not None)
        return Case(plan, made, question)

    def _sample(
        self, client: Client, kind: str, size: int, source: torch.Generator, taken: set[int]
    ) -> Sample:
        """Draw samples of different inputs, none of them ``taken``.

        One input with two labels leaves the gradient of their mean label, which no numbers tell
        from that of one sample.
        """
        rows = []
        for row in torch.randint(len(self.inputs), (size,), generator=source).tolist():
            while row in taken:
                row = (row + 1) % len(self.inputs)
            taken.add(row)
            rows.append(row)
        x = self.inputs[rows].to(self.stranger.dtype)
        z = client.logits(x)
        return Sample(x, torch.stack([LABELS[kind](row, source) for row in z]), z)


def find(
    stranger: str, way: str, kind: str, number: int = 0, seed: int = 0
) -> tuple[Subject, Case]:
    """The subject and the case of given names: how a finding is reproduced."""
    subject = Subject(next(one for one in ZOO if one.name == stranger), seed)
    chosen = next(one for one in WAYS if one.name == way)
    return subject, subject.case(Plan(chosen, kind, number))
