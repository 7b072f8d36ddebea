"""Table 4: inputs of an untrained LeNet when the recovered feature is matched as well."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import torch
from torch import Tensor

from softleak.audit.metrics import label_error, lpips, psnr, same_bits, ssim
from softleak.core.input_spec import Normalisation
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.chain import Chain
from softleak.inversion.walk import Inversion, invert
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
from softleak.paper.data.imageset import ImageSet, resize
from softleak.paper.data.samples import Sample, mixup, numbered_generator, one_hot, smooth
from softleak.paper.experiment import Attack, Cell, Column, Experiment, Unit
from softleak.paper.label_tables import KindCell
from softleak.paper.networks import (
    MIXED,
    NETWORKS,
    SEEDS,
    SMOOTHED,
    AttackedNetwork,
    Network,
    Shelf,
)
from softleak.paper.sweep.records import Measures

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
    """Return PSNR, SSIM and LPIPS of a recovered input.

    Args:
        found: the input (C, H, W) as the model sees it, or None if none was found.
        sample: the truth.
        norm: the normalisation that turns pixels into inputs.
        nothing: the image (C, H, W) that is scored instead if no usable input was found.
    """
    usable = found is not None and bool(found.isfinite().all())
    image = norm.invert(found.double()) if usable and found is not None else nothing.double()
    truth = norm.invert(sample.x.double())
    scores = {PSNR: psnr(image, truth), SSIM: ssim(image, truth), LPIPS: lpips(image, truth)}
    return {name: finite(value) for name, value in scores.items()}


def finite(value: float) -> float | None:
    """Return the value, or None if it is NaN or infinite, which a record cannot hold."""
    return value if math.isfinite(value) else None


BITS = "bits"  # the measure that says whether an input came back to the last bit
Inverse = Callable[[GradientShare], tuple[Recovery, Inversion | None]]


@dataclass(frozen=True)
class InversionCell(KindCell):
    """A cell that inverts a network that is a plain sequence of layers."""

    samples: int = 100

    def prepare(self, shelf: Shelf) -> Attack:
        """Return the attack on the inputs of this cell's network."""
        target = AttackedNetwork.of(self.network, shelf, everything=True)
        inverse, nothing = inverter(target), mean_image(target)

        def measured(sample: Sample) -> Measures:
            return inverted(*inverse(target.share(sample)), sample, target, nothing)

        return self.one_by_one(target, measured)


def inverter(target: AttackedNetwork) -> Inverse:
    """Return a function that recovers the label of a share, and then its input.

    No family of labels is assumed. The function returns None instead of an inversion if the feature
    was not recovered.

    Args:
        target: the network that is attacked; its layers are prepared once, here.
    """
    chain = Chain.of(target.model, target.head, target.network.input_shape)
    pixel = pixels(target.network.normalisation)

    def inverse(share: GradientShare) -> tuple[Recovery, Inversion | None]:
        (recovery,) = recover(target.subject, [share], Knowledge())
        if recovery.feature is None:
            return recovery, None
        return recovery, invert(target.model, share, recovery, chain=chain, pixel=pixel)

    return inverse


def inverted(
    recovery: Recovery, found: Inversion | None, sample: Sample, target: AttackedNetwork,
    nothing: Tensor,
) -> Measures:  # fmt: skip
    """Return how an inverted input compares with the true one.

    Args:
        recovery: the recovered label.
        found: the inverted input, or None if there is none.
        sample: the truth.
        target: the network that was attacked.
        nothing: the image (C, H, W) that is scored if there is no inverted input.
    """
    image = None if found is None else found.input.view_as(sample.x)
    return {
        **qualities(image, sample, target.network.normalisation, nothing),
        "L1": None if recovery.label is None else label_error(recovery, sample.y),
        "status": recovery.status.name,
        "predicted": None if found is None else finite(found.psnr_predicted),
        "determined": found is not None and found.determined,
        BITS: found is not None and same_bits(found.input, sample.x),
    }


def pixels(norm: Normalisation) -> Tensor:
    """Return what one unit of a normalised input is in pixel values, of shape (C, 1, 1)."""
    return torch.tensor(norm.std, dtype=torch.double).view(-1, 1, 1)


def mean_image(target: AttackedNetwork) -> Tensor:
    """Return the mean image (C, H, W) of the data set, which is a guess without any share."""
    mean = target.shelf.images(target.network.source).mean()
    return resize(mean[None], target.network.size)[0]


FCN = Experiment(
    "fcn",
    "App. D: inputs of FCN-4",
    (
        InversionCell("fcn4", SMOOTHED, {PSNR: 51.30, SSIM: 0.999, LPIPS: 0.001}),
        InversionCell("fcn4", MIXED, {PSNR: 66.80, SSIM: 1.0, LPIPS: 0.045}),
        # The same on the embedded images, for users without Flowers-17. The paper has no such cell.
        InversionCell("fcn4 on cifar10", SMOOTHED, {}),
        InversionCell("fcn4 on cifar10", MIXED, {}),
    ),
    (*QUALITIES, Column("to the last bit", BITS, Unit.PERCENT)),
    samples=10,
)


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
    """A description of how the samples of one repetition are drawn."""

    name: str  # how the protocol is called in a cell's name
    draw: Draw  # the function that draws a sample from its number and a generator
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
    """A cell of inputs computed by exact inversion, beside the best figures of the paper.

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
    """A cell of inputs found by gradient matching.

    Attributes:
        source: where the label comes from; None means that the true label is given.
        optimiser: the way to minimise; None means the paper's for the objective.
        compiled: whether evaluations are compiled, which is faster and rounds differently.
        polish: how inputs that were matched are solved for at the end, if they are.
    """

    objective: Objective  # the distance between gradients
    method: str  # how the cell's column is called
    source: LabelSource | None
    optimiser: Optimiser | None = None
    compiled: bool = False
    together: int = 15  # how many samples run in one batch
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


SOURCES: Mapping[str, LabelSource | None] = {
    "GT": None,
    "iDLG": HardLabel(),
    "DLG": RandomLabel(),
    "ours": RecoveredLabel(),
    "DLG+ours": RecoveredLabel(free=True),
}
Values = tuple[float, ...]  # of GT, iDLG, DLG, ours, DLG+ours
POLISHED = "polished"
LABEL_L1 = "L1"  # the measure that holds the L1 error of the label
Setting = tuple[SamplingProtocol, str, type[L2 | Cosine]]
# PSNR, SSIM and LPIPS of all five sources, and then the L1 error of the labels of DLG and ours.
TABLE3_PAPER: Mapping[Setting, tuple[Values, Values, Values, Values]] = {
    (MIXED_PROTOCOL, "lenet", L2): (
        (28.27, 10.70, 24.26, 28.24, 27.81), (0.640, 0.099, 0.553, 0.644, 0.659),
        (0.141, 0.355, 0.172, 0.138, 0.130), (0.44, 5e-6),
    ),
    (MIXED_PROTOCOL, "lenet trained", L2): (
        (19.28, 9.34, 16.93, 19.29, 17.30), (0.628, 0.020, 0.500, 0.628, 0.519),
        (0.062, 0.394, 0.113, 0.063, 0.102), (0.15, 8e-6),
    ),
    (MIXED_PROTOCOL, "lenet", Cosine): (
        (25.76, 23.01, 26.45, 25.81, 26.51), (0.858, 0.745, 0.881, 0.859, 0.882),
        (0.033, 0.053, 0.027, 0.033, 0.027), (0.11, 5e-6),
    ),
    (MIXED_PROTOCOL, "lenet trained", Cosine): (
        (24.56, 15.51, 22.71, 24.67, 24.84), (0.741, 0.356, 0.688, 0.746, 0.758),
        (0.046, 0.173, 0.053, 0.044, 0.040), (0.05, 8e-6),
    ),
    (SMOOTHED_PROTOCOL, "lenet", L2): (
        (21.33, 10.64, 18.98, 20.94, 21.00), (0.587, 0.129, 0.492, 0.584, 0.590),
        (0.150, 0.351, 0.192, 0.149, 0.149), (0.37, 4e-6),
    ),
    (SMOOTHED_PROTOCOL, "lenet trained", L2): (
        (11.70, 8.72, 11.86, 11.61, 11.47), (0.267, 0.029, 0.283, 0.260, 0.244),
        (0.250, 0.401, 0.236, 0.259, 0.264), (0.36, 8e-6),
    ),
    (SMOOTHED_PROTOCOL, "lenet", Cosine): (
        (23.13, 22.89, 24.09, 23.06, 24.26), (0.820, 0.807, 0.865, 0.818, 0.868),
        (0.034, 0.032, 0.023, 0.035, 0.022), (0.20, 4e-6),
    ),
    (SMOOTHED_PROTOCOL, "lenet trained", Cosine): (
        (18.99, 17.40, 18.56, 18.98, 20.42), (0.615, 0.558, 0.614, 0.614, 0.691),
        (0.095, 0.121, 0.088, 0.095, 0.069), (0.17, 8e-6),
    ),
}  # fmt: skip


def _matched() -> Iterator[Cell]:
    """Yield a cell for each setting and each source of the label."""
    for (protocol, subject, kind), (*images, (dlg, ours)) in TABLE3_PAPER.items():
        for (method, source), values in zip(
            SOURCES.items(), zip(*images, strict=True), strict=True
        ):
            paper = dict(zip((PSNR, SSIM, LPIPS), values, strict=True))
            errors = {"DLG": dlg, "ours": ours}
            paper |= {LABEL_L1: errors[method]} if method in errors else {}
            yield MatchingCell(protocol, subject, paper, kind(), method, source)


def _polished() -> Iterator[Cell]:
    """Yield the cells of "ours" polished by Gauss–Newton, each beside the paper's "ours"."""
    column = list(SOURCES).index("ours")
    for (protocol, subject, kind), (*images, _) in TABLE3_PAPER.items():
        paper = dict(zip((PSNR, SSIM, LPIPS), (one[column] for one in images), strict=True))
        yield MatchingCell(
            protocol, subject, paper, kind(), POLISHED, RecoveredLabel(), together=1,
            polish=GaussNewton(),
        )  # fmt: skip


def _exact() -> Iterator[Cell]:
    """Yield the cells of exact inversion, each beside the best of the paper's ten values."""
    for protocol in (MIXED_PROTOCOL, SMOOTHED_PROTOCOL):
        for subject in ("lenet", "lenet trained"):
            both = [TABLE3_PAPER[protocol, subject, kind] for kind in (L2, Cosine)]
            psnr, ssim, lpips = (sum((each[i] for each in both), ()) for i in range(3))
            best = {PSNR: max(psnr), SSIM: max(ssim), LPIPS: min(lpips)}
            yield ExactCell(protocol, subject, best)


TABLE3 = Experiment(
    "table3",
    "Table 3: inputs of LeNet, exact inversion beside the best of the paper's five",
    (*_exact(), *_matched(), *_polished()),
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
TABLE4_PAPER: Mapping[tuple[SamplingProtocol, type[L2 | Cosine]], tuple[Values, Values, Values]] = {
    (MIXED_PROTOCOL, L2): (
        (29.04, 34.09, 29.28, 34.18, 29.53), (0.677, 0.763, 0.686, 0.762, 0.691),
        (0.124, 0.089, 0.120, 0.088, 0.116),
    ),
    (MIXED_PROTOCOL, Cosine): (
        (25.71, 28.75, 25.89, 28.81, 25.92), (0.856, 0.918, 0.857, 0.918, 0.858),
        (0.034, 0.015, 0.033, 0.015, 0.032),
    ),
    (SMOOTHED_PROTOCOL, L2): (
        (20.49, 24.96, 21.00, 24.65, 20.80), (0.535, 0.690, 0.578, 0.683, 0.559),
        (0.176, 0.114, 0.162, 0.117, 0.167),
    ),
    (SMOOTHED_PROTOCOL, Cosine): (
        (23.02, 25.79, 23.27, 25.85, 23.34), (0.817, 0.885, 0.824, 0.887, 0.824),
        (0.035, 0.017, 0.032, 0.016, 0.032),
    ),
}  # fmt: skip

TABLE4 = Experiment(
    "table4",
    "Table 4: inputs of an untrained LeNet, with the last layer's feature",
    tuple(
        MatchingCell(
            protocol, "lenet", dict(zip((PSNR, SSIM, LPIPS), values, strict=True)),
            kind(*weights), "ours", RecoveredLabel(),
        )
        for (protocol, kind), images in TABLE4_PAPER.items()
        for weights, values in zip(TERM_WEIGHTS, zip(*images, strict=True), strict=True)
    ),
    QUALITIES,
    samples=15,
    paper_repeats=10,
    across={title: f" {title}, ours" for title in WEIGHT_TITLES},
)  # fmt: skip
