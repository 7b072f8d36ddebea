"""Cells of Tables 3 and 4: inputs of LeNet by gradient matching, and by exact inversion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import torch
from torch import Tensor

import softleak as sl
from softleak.data import ImageSet, Normalisation, Sample, numbered_generator
from softleak.data.augment import mixup, one_hot, smooth
from softleak.experiments.experiment import Attack
from softleak.experiments.images import finite, qualities
from softleak.experiments.inversion import inverted, inverter, mean_image
from softleak.experiments.networks import NETWORKS, Network
from softleak.experiments.shelf import Shelf
from softleak.experiments.target import SEED, Target
from softleak.matching import (
    GivenLabel,
    LabelSource,
    Noise,
    Objective,
    Optimiser,
    TotalVariation,
    pass_on_interrupt,
    reconstruct,
)
from softleak.sweep import Measures

EACH = 3  # images a class, for smoothing
SMOOTHNESS = {"lenet": 1e-2, "lenet trained": 1e-3}  # the weight of total variation
Draw = Callable[[ImageSet, Normalisation, int, torch.Generator], Sample]


def smoothed(
    images: ImageSet, norm: Normalisation, number: int, generator: torch.Generator
) -> Sample:
    """Three images of every class, ε ~ U(0, 0.5)."""
    label = number // EACH % images.classes
    epsilon = 0.5 * float(torch.rand((), generator=generator))
    return Sample(_pick(images, norm, label, generator), smooth(label, images.classes, epsilon))


def mixed(images: ImageSet, norm: Normalisation, number: int, generator: torch.Generator) -> Sample:
    """One pair of images for every pair of classes, λ ~ U(0, 1)."""
    pairs = list(combinations(range(images.classes), 2))
    weight = float(torch.rand((), generator=generator))
    first, second = (
        (_pick(images, norm, label, generator), one_hot(label, images.classes))
        for label in pairs[number % len(pairs)]
    )
    return mixup(*first, *second, weight)


def _pick(images: ImageSet, norm: Normalisation, label: int, generator: torch.Generator) -> Tensor:
    """A random image of a class, normalised."""
    of_class = (images.labels == label).nonzero()[:, 0]
    index = int(of_class[torch.randint(len(of_class), (), generator=generator)])
    return norm.apply(images.pixels(index))


@dataclass(frozen=True)
class Protocol:
    """How the samples of one repetition are drawn, and how many there are."""

    name: str
    draw: Draw
    samples: int

    def drawn(self, target: Target, numbers: Sequence[int], repeat: int) -> list[Sample]:
        """Samples that depend on their number and repetition alone."""
        images, norm = target.shelf.images(target.network.source), target.network.normalisation
        return [self.draw(images, norm, n, numbered_generator(SEED + repeat, n)) for n in numbers]


SMOOTHED, MIXED = Protocol("smoothed", smoothed, 30), Protocol("mixed", mixed, 45)


@dataclass(frozen=True)
class LeNetCell:
    """A LeNet and how its samples are drawn."""

    protocol: Protocol
    subject: str
    paper: Mapping[str, float] = field(hash=False)

    @property
    def network(self) -> Network:
        return NETWORKS[self.subject]

    @property
    def samples(self) -> int:
        return self.protocol.samples


@dataclass(frozen=True)
class ExactCell(LeNetCell):
    """The input computed, which the paper cannot; beside the best it has in this setting."""

    together: int = 1

    @property
    def name(self) -> str:
        return f"{self.protocol.name}, {self.subject}, exact inversion"

    def prepare(self, shelf: Shelf) -> Attack:
        target = Target.of(self.network, shelf, everything=True)
        inverse, nothing = inverter(target), mean_image(target)

        def attack(numbers: Sequence[int], repeat: int) -> Iterator[Measures]:
            for sample in self.protocol.drawn(target, numbers, repeat):
                yield inverted(*inverse(target.share(sample)), sample, target, nothing)

        return attack


@dataclass(frozen=True)
class MatchingCell(LeNetCell):
    """An objective and where the label comes from; without a source it is the truth, given."""

    objective: Objective
    method: str
    source: LabelSource | None
    optimiser: Optimiser | None = None  # the paper's for the objective
    compiled: bool = False  # faster, other roundings
    together: int = 15

    @property
    def name(self) -> str:
        kind = type(self.objective).__name__
        weights = f"α={self.objective.alpha:g} β={self.objective.beta:g}"
        return f"{self.protocol.name}, {self.subject}, {kind} {weights}, {self.method}"

    def prepare(self, shelf: Shelf) -> Attack:
        target = Target.of(self.network, shelf, everything=True)
        nothing, norm = mean_image(target), self.network.normalisation

        def attack(numbers: Sequence[int], repeat: int) -> Iterator[Measures]:
            drawn = self.protocol.drawn(target, numbers, repeat)
            for sample, found in zip(drawn, self._matched(target, drawn, repeat), strict=True):
                error = None if found.label is None else (found.label - sample.y).abs().sum()
                yield {
                    **qualities(found.input, sample, norm, nothing),
                    "L1": None if error is None else float(error),
                    "status": found.status.name,
                    "misfit": finite(found.misfit),
                    "evaluations": found.evaluations,
                }

        return attack

    def _matched(
        self, target: Target, drawn: Sequence[Sample], repeat: int
    ) -> tuple[sl.Reconstruction, ...]:
        shares = [target.share(sample) for sample in drawn]
        found = reconstruct(
            target.model, shares,
            sl.recover_labels(target.model, shares, evidence=target.relations, head=target.head),
            objective=self.objective, priors=[TotalVariation(SMOOTHNESS[self.subject])],
            label=[self.source or GivenLabel(sample.y) for sample in drawn],
            start=Noise(repeat), head=target.head, compiled=self.compiled, optimiser=self.optimiser,
        )  # fmt: skip
        pass_on_interrupt(found)
        return found
