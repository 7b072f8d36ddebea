"""The tables of inputs: FCN-4 (App. D), LeNet (Table 3), and LeNet with its feature (Table 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import combinations, product

import torch
from torch import Tensor

from softleak.audit.metrics import label_error, lpips, psnr, same_bits, ssim
from softleak.core.input_spec import Normalisation
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.chain import Chain
from softleak.inversion.invert import walk_back
from softleak.inversion.results import Inversion
from softleak.labels.recover import recover, recover_labels
from softleak.matching.gauss_newton.method import GaussNewton
from softleak.matching.optimisers import Optimiser
from softleak.matching.problems import L2, Cosine, Objective, TotalVariation
from softleak.matching.reconstruct import Matching
from softleak.matching.reconstruction import Reconstruction
from softleak.matching.tasks import (
    GivenLabel,
    HardLabel,
    LabelSource,
    Noise,
    RandomLabel,
    RecoveredLabel,
)
from softleak.paper.data.load import ImageSet, resize
from softleak.paper.data.samples import (
    Augmentation,
    Sample,
    mixup,
    numbered_generator,
    one_hot,
    smooth,
)
from softleak.paper.experiment import Attack, Cell, Column, Experiment, Unit
from softleak.paper.label_tables import KindCell
from softleak.paper.networks import MIXED, SEEDS, SMOOTHED, AttackedNetwork, Shelf
from softleak.paper.sweep import Measures

PSNR, SSIM, LPIPS = "PSNR", "SSIM", "LPIPS"
_SMALLEST = torch.zeros(1, 7, 7)  # the smallest image that scikit-image compares
QUALITIES = (
    Column("PSNR", PSNR, Unit.DECIBEL, PSNR),
    Column("SSIM", SSIM, Unit.PLAIN, SSIM, check=lambda: ssim(_SMALLEST, _SMALLEST)),
    Column("LPIPS", LPIPS, Unit.PLAIN, LPIPS, higher=False),
)


def qualities(
    found: Tensor | None, sample: Sample, norm: Normalisation, nothing: Tensor
) -> Measures:
    """Return PSNR, SSIM and LPIPS of an input (C, H, W) as the model sees it.

    If no usable input was found, the image ``nothing`` (C, H, W) is scored instead.
    """
    usable = found is not None and bool(found.isfinite().all())
    image = norm.invert(found.double()) if usable and found is not None else nothing.double()
    truth = norm.invert(sample.x.double())
    scores = {PSNR: psnr(image, truth), SSIM: ssim(image, truth), LPIPS: lpips(image, truth)}
    return {name: finite(value) for name, value in scores.items()}


def finite(value: float) -> float | None:
    """Return the value, or None if it is NaN or infinite, which a record cannot hold."""
    return value if math.isfinite(value) else None


def inverter(
    target: AttackedNetwork,
) -> Callable[[GradientShare], tuple[Recovery, Inversion | None]]:
    """Return a function that recovers the label of a share, and then its input.

    No family of labels is assumed. The function returns None instead of an inversion if the feature
    was not recovered.
    """
    chain = Chain.of(target.model, target.head, target.network.input_shape)
    pixel = pixels(target.network.normalisation)

    def inverse(share: GradientShare) -> tuple[Recovery, Inversion | None]:
        (recovery,) = recover(target.subject, [share], Knowledge())
        if recovery.feature is None:
            return recovery, None
        return recovery, walk_back(target.model, share, recovery, chain=chain, pixel=pixel)

    return inverse


def pixels(norm: Normalisation) -> Tensor:
    """Return what one unit of a normalised input is in pixel values, of shape (C, 1, 1)."""
    return torch.tensor(norm.std, dtype=torch.double).view(-1, 1, 1)


def mean_image(target: AttackedNetwork) -> Tensor:
    """Return the mean image (C, H, W) of the data set, which is a guess without any share."""
    mean = target.shelf.images(target.network.source).mean()
    return resize(mean[None], target.network.size)[0]


BITS = "bits"  # the measure that says whether an input came back to the last bit


def exactly_inverted(target: AttackedNetwork, draw: Callable[[int, int], Sample]) -> Attack:
    """Return the attack that inverts a plain sequence of layers, on samples that are drawn."""
    inverse, nothing = inverter(target), mean_image(target)

    def measured(number: int, repeat: int) -> Measures:
        sample = draw(number, repeat)
        recovery, found = inverse(target.share(sample))
        image = None if found is None else found.input.view_as(sample.x)
        return {
            **qualities(image, sample, target.network.normalisation, nothing),
            "L1": None if recovery.label is None else label_error(recovery, sample.y),
            "status": recovery.status.name,
            "predicted": None if found is None else finite(found.psnr_predicted),
            "determined": found is not None and found.determined,
            BITS: found is not None and same_bits(found.input, sample.x),
        }

    return lambda numbers, repeat: (measured(number, repeat) for number in numbers)


@dataclass(frozen=True)
class InversionCell(KindCell):
    """A cell that inverts a network that is a plain sequence of layers."""

    _: KW_ONLY
    samples: int = 100

    def prepare(self, shelf: Shelf) -> Attack:
        target = AttackedNetwork.of(self.network, shelf, everything=True)
        return exactly_inverted(target, partial(target.sample, self.kind.augmentation))


FCN = Experiment(
    "fcn",
    "App. D: inputs of FCN-4",
    (
        InversionCell("fcn4", SMOOTHED),
        InversionCell("fcn4", MIXED),
        # The same on the embedded images, for users without Flowers-17. The paper has no such cell.
        InversionCell("fcn4 on cifar10", SMOOTHED),
        InversionCell("fcn4 on cifar10", MIXED),
    ),
    (*QUALITIES, Column("to the last bit", BITS, Unit.PERCENT)),
    samples=10,
)


IMAGES_PER_CLASS = 3  # of the protocol with smoothed labels
VARIATION_WEIGHTS = {"lenet": 1e-2, "lenet trained": 1e-3}  # the paper's, of total variation


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
    """A description of how the samples of one repetition are drawn."""

    name: str  # how the protocol is called in a cell's name
    draw: Augmentation  # draws a sample from its number, not from that of an image
    samples: int  # how many samples a repetition has

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
class ExactCell(Cell):
    """A cell of inputs of a LeNet computed by exact inversion, which the paper itself has not."""

    protocol: SamplingProtocol

    @property
    def name(self) -> str:
        return f"{self.protocol.name}, {self.subject}, exact inversion"

    def prepare(self, shelf: Shelf) -> Attack:
        target = AttackedNetwork.of(self.network, shelf, everything=True)
        return exactly_inverted(
            target, lambda n, repeat: self.protocol.drawn(target, [n], repeat)[0]
        )


@dataclass(frozen=True)
class MatchingCell(Cell):
    """A cell of inputs of a LeNet found by gradient matching."""

    protocol: SamplingProtocol
    objective: Objective  # the distance between gradients
    method: str  # how the cell's column is called
    source: LabelSource | None  # where the label comes from; None: the true label is given
    _: KW_ONLY
    optimiser: Optimiser | None = None  # the way to minimise; None: the paper's for the objective
    compiled: bool = False  # whether evaluations are compiled: faster, and rounds differently
    together: int = 15
    polish: GaussNewton | None = None  # how what was matched is solved for at the end, if it is

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


SOURCES: Mapping[str, LabelSource | None] = {
    "GT": None,
    "iDLG": HardLabel(),
    "DLG": RandomLabel(),
    "ours": RecoveredLabel(),
    "DLG+ours": RecoveredLabel(free=True),
}
POLISHED = "polished"
LABEL_L1 = "L1"  # the measure that holds the L1 error of the label


def _table3() -> Iterator[Cell]:
    """Yield the cells of Table 3, in three parts.

    Inputs by exact inversion, each beside the best of the paper's ten values; those by matching,
    for every setting and source of the label; "ours" polished by Gauss–Newton, beside "ours".
    """
    protocols = (MIXED_PROTOCOL, SMOOTHED_PROTOCOL)
    for protocol, subject in product(protocols, VARIATION_WEIGHTS):
        yield ExactCell(subject, protocol, samples=protocol.samples)
    distances: tuple[Objective, ...] = (L2(), Cosine())
    settings = list(product(protocols, distances, VARIATION_WEIGHTS))
    for (protocol, distance, subject), method in product(settings, SOURCES):
        yield MatchingCell(
            subject, protocol, distance, method, SOURCES[method], samples=protocol.samples
        )
    for protocol, distance, subject in settings:
        yield MatchingCell(
            subject, protocol, distance, POLISHED, RecoveredLabel(), samples=protocol.samples,
            together=1, polish=GaussNewton(),
        )  # fmt: skip


TABLE3 = Experiment(
    "table3",
    "Table 3: inputs of LeNet, exact inversion beside the best of the paper's five",
    tuple(_table3()),
    (*QUALITIES, Column("label's L1", LABEL_L1, Unit.SMALL, LABEL_L1, higher=False)),
    samples=15,
    paper_repeats=10,
    across={
        **{method: f" α=1 β=0, {method}" for method in (*SOURCES, POLISHED)},
        "exact": ", exact inversion",
    },
)


# α of the head's gradient, and β of the feature.
TERM_WEIGHTS = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.0, 2.0), (2.0, 2.0))
WEIGHT_TITLES = tuple(f"α={a:g} β={b:g}" for a, b in TERM_WEIGHTS)
TABLE4 = Experiment(
    "table4",
    "Table 4: inputs of an untrained LeNet, with the last layer's feature",
    tuple(
        MatchingCell(
            "lenet", protocol, distance(*weights), "ours", RecoveredLabel(),
            samples=protocol.samples,
        )
        for protocol in (MIXED_PROTOCOL, SMOOTHED_PROTOCOL)
        for distance in (L2, Cosine)
        for weights in TERM_WEIGHTS
    ),
    QUALITIES,
    samples=15,
    paper_repeats=10,
    across={title: f" {title}, ours" for title in WEIGHT_TITLES},
)  # fmt: skip
