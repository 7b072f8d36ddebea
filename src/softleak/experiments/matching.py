"""This module holds the cells of Tables 3 and 4: inputs of LeNet by gradient matching and by exact
inversion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import torch
from torch import Tensor

from softleak.data import ImageSet, Normalisation, Sample, numbered_generator
from softleak.data.augment import mixup, one_hot, smooth
from softleak.experiments.attacked_network import AttackedNetwork
from softleak.experiments.experiment import Attack
from softleak.experiments.image_scores import finite, qualities
from softleak.experiments.inversion import inverted, inverter, mean_image
from softleak.experiments.networks import NETWORKS, Network
from softleak.experiments.seeds import SEEDS
from softleak.experiments.shelf import Shelf
from softleak.labels.recover import recover_labels
from softleak.matching import (
    GaussNewton,
    GivenLabel,
    LabelSource,
    Matching,
    Noise,
    Objective,
    Optimiser,
    Reconstruction,
    TotalVariation,
)
from softleak.subject import Subject
from softleak.sweep import Measures

IMAGES_PER_CLASS = 3  # of the protocol with smoothed labels
VARIATION_WEIGHTS = {"lenet": 1e-2, "lenet trained": 1e-3}  # the paper's, of total variation
Draw = Callable[[ImageSet, Normalisation, int, torch.Generator], Sample]


def smoothed(
    images: ImageSet, norm: Normalisation, number: int, generator: torch.Generator
) -> Sample:
    """Draw one of three images per class, with a label smoothed by ε ~ U(0, 0.5)."""
    label = number // IMAGES_PER_CLASS % images.classes
    epsilon = 0.5 * float(torch.rand((), generator=generator))
    return Sample(_pick(images, norm, label, generator), smooth(label, images.classes, epsilon))


def mixed(images: ImageSet, norm: Normalisation, number: int, generator: torch.Generator) -> Sample:
    """Draw one pair of images per pair of classes, mixed with λ ~ U(0, 1)."""
    pairs = list(combinations(range(images.classes), 2))
    weight = float(torch.rand((), generator=generator))
    first, second = (
        (_pick(images, norm, label, generator), one_hot(label, images.classes))
        for label in pairs[number % len(pairs)]
    )
    return mixup(*first, *second, weight)


def _pick(images: ImageSet, norm: Normalisation, label: int, generator: torch.Generator) -> Tensor:
    """Return a random image of a class, normalised."""
    of_class = (images.labels == label).nonzero()[:, 0]
    index = int(of_class[torch.randint(len(of_class), (), generator=generator)])
    return norm.apply(images.pixels(index))


@dataclass(frozen=True)
class SamplingProtocol:
    """A description of how the samples of one repetition are drawn.

    Attributes:
        name: how the protocol is called in a cell's name.
        draw: the function that draws a sample from its number and a generator.
        samples: how many samples a repetition has.
    """

    name: str
    draw: Draw
    samples: int

    def drawn(self, target: AttackedNetwork, numbers: Sequence[int], repeat: int) -> list[Sample]:
        """Return samples that depend on their number and repetition alone."""
        images, norm = target.shelf.images(target.network.source), target.network.normalisation
        return [
            self.draw(images, norm, n, numbered_generator(SEEDS.samples + repeat, n))
            for n in numbers
        ]


SMOOTHED_PROTOCOL = SamplingProtocol("smoothed", smoothed, 30)
MIXED_PROTOCOL = SamplingProtocol("mixed", mixed, 45)


@dataclass(frozen=True)
class LeNetCell:
    """A LeNet, how its samples are drawn, and the paper's figures for it."""

    protocol: SamplingProtocol
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
    """This is a cell of inputs computed by exact inversion, beside the best figures of the paper.

    The paper itself has no exact inversion of a LeNet.
    """

    together: int = 1

    @property
    def name(self) -> str:
        return f"{self.protocol.name}, {self.subject}, exact inversion"

    def prepare(self, shelf: Shelf) -> Attack:
        target = AttackedNetwork.of(self.network, shelf, everything=True)
        inverse, nothing = inverter(target), mean_image(target)

        def attack(numbers: Sequence[int], repeat: int) -> Iterator[Measures]:
            for sample in self.protocol.drawn(target, numbers, repeat):
                yield inverted(*inverse(target.share(sample)), sample, target, nothing)

        return attack


@dataclass(frozen=True)
class MatchingCell(LeNetCell):
    """This is a cell of inputs found by gradient matching.

    Attributes:
        objective: the distance between gradients.
        method: how the cell's column is called.
        source: where the label comes from; None means that the true label is given.
        optimiser: the way to minimise; None means the paper's for the objective.
        compiled: whether evaluations are compiled, which is faster and rounds differently.
        together: how many samples run in one batch.
        polish: how inputs that were matched are solved for at the end, if they are.
    """

    objective: Objective
    method: str
    source: LabelSource | None
    optimiser: Optimiser | None = None
    compiled: bool = False
    together: int = 15
    polish: GaussNewton | None = None

    @property
    def name(self) -> str:
        kind = type(self.objective).__name__
        weights = f"α={self.objective.alpha:g} β={self.objective.beta:g}"
        return f"{self.protocol.name}, {self.subject}, {kind} {weights}, {self.method}"

    def prepare(self, shelf: Shelf) -> Attack:
        target = AttackedNetwork.of(self.network, shelf, everything=True)
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
        self, target: AttackedNetwork, drawn: Sequence[Sample], repeat: int
    ) -> tuple[Reconstruction, ...]:
        """Return one reconstruction per sample; the start depends on the repetition."""
        shares = [target.share(sample) for sample in drawn]
        recoveries = recover_labels(
            target.model, shares, evidence=target.relations, head=target.head
        )
        matching = Matching(
            self.objective, self.optimiser, [TotalVariation(VARIATION_WEIGHTS[self.subject])],
            label=[self.source or GivenLabel(sample.y) for sample in drawn],
            start=Noise(repeat), compiled=self.compiled, polish=self.polish,
        )  # fmt: skip
        return matching(Subject(target.model, target.head), shares, recoveries)
