"""The paper's tables: of labels (1, 2, 5), of inputs (App. D, 3, 4), and one of batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import combinations, product
from typing import ClassVar

import torch
from torch import Tensor

from softleak.audit.metrics import label_error, lpips, psnr, same_bits, ssim
from softleak.batches.recover import read_batch
from softleak.core.families import Mixed, Smoothed
from softleak.core.head import Head
from softleak.core.input_spec import Normalisation
from softleak.core.knowledge import Knowledge
from softleak.core.results import BatchRecovery, Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.defenses.defense import Defense, GaussianNoise, LaplaceNoise
from softleak.inversion.invert import walk_back
from softleak.inversion.results import Inversion
from softleak.labels.recover import recover, recover_labels
from softleak.matching import L2, Cosine, GaussNewton, Matching, Objective, Optimiser
from softleak.matching.problems import TotalVariation
from softleak.matching.reconstruction import Reconstruction
from softleak.matching.tasks import (
    GivenLabel,
    HardLabel,
    LabelSource,
    Noise,
    RandomLabel,
    RecoveredLabel,
)
from softleak.paper.classic import RowRatios, best_scalar
from softleak.paper.data import (
    ImageSet,
    Sample,
    mixup,
    numbered_generator,
    one_hot,
    smooth,
)
from softleak.paper.experiment import Cell, Column, Experiment, Unit
from softleak.paper.networks import (
    MIXED,
    NOISE_SEED,
    ONE_HOT,
    SAMPLE_SEED,
    SMOOTHED,
    AttackedNetwork,
    AugmentationKind,
)
from softleak.paper.sweep import Measures

LABEL_TOLERANCE = 1e-3  # the L1 distance below which an answer counts as the true label
ACCURACY, ERROR, IDLG = "accuracy", "L1", "iDLG"
ACCURACIES = (
    Column("head only", "head_exact", Unit.PERCENT, ACCURACY),
    Column("whole share", "whole_exact", Unit.PERCENT, ACCURACY),
)
ERRORS = (
    Column("L1, head only", "head_L1", Unit.SMALL, ERROR, higher=False),
    Column("L1, whole share", "whole_L1", Unit.SMALL, ERROR, higher=False),
)


def each_way(scores: Mapping[str, Measures]) -> Measures:
    """Return the measures of several ways to attack one share, named after way and measure."""
    return {f"{way}_{name}": v for way, one in scores.items() for name, v in one.items()}


@dataclass(frozen=True)
class KindCell(Cell):
    """A cell that attacks one network with one kind of label."""

    kind: AugmentationKind  # how labels are made, and the family that the attacker assumes
    _: KW_ONLY
    samples: int = 1000

    @property
    def name(self) -> str:
        return f"{self.subject}, {self.kind.name}"


@dataclass(frozen=True)
class LabelCell(KindCell):
    """A cell that recovers labels of a kind that the attacker knows."""

    def measured(self, target: AttackedNetwork, number: int, repeat: int) -> Measures:
        sample = target.sample(self.kind.augmentation, number, repeat)
        share = target.share(sample)
        ways = {
            "head": Knowledge(self.kind.family, head_only=True),
            "whole": Knowledge(self.kind.family),
        }
        found = {way: recover(target.subject, [share], known)[0] for way, known in ways.items()}
        measures = each_way({way: scored(answer, sample) for way, answer in found.items()})
        if self.kind != ONE_HOT:  # not `is not`: a worker process holds a copy
            return measures
        return {**measures, "idlg_exact": _idlg(target, share) == int(sample.y.argmax())}


def _idlg(target: AttackedNetwork, share: GradientShare) -> int | None:
    """Return the class as iDLG's code reads it, from the lowest row; None of a zero gradient."""
    if not share[target.head.weight_name].any():
        return None
    found = HardLabel().start(target.head, share, None)
    return None if found is None else int(found.value.argmax())


def scored(recovery: Recovery, sample: Sample) -> Measures:
    """Compare an answer with the true label. As in the paper, only UNIQUE ones have an error."""
    unique = recovery.status is Status.UNIQUE
    error = label_error(recovery, sample.y)
    return {
        "status": recovery.status.name,
        "exact": unique and error < LABEL_TOLERANCE,
        "L1": error if unique else None,
    }


TABLE1 = Experiment(
    "table1",
    "Table 1: labels recovered on an untrained ResNet50",
    tuple(
        LabelCell(f"resnet50 on {source}", kind)
        for source in ("cifar100", "flowers", "imagenet")
        for kind in (SMOOTHED, MIXED, ONE_HOT)
    ),
    (*ACCURACIES, Column("iDLG, by us", "idlg_exact", Unit.PERCENT, IDLG)),
    samples=20,
)


MEASURED_NETWORKS = (
    "lenet", "lenet trained", "resnet18", "resnet18_cifar trained", "alexnet", "alexnet trained",
    "resnet18 on flowers", "resnet18 on flowers trained",
)  # fmt: skip

TABLE2 = Experiment(
    "table2",
    "Table 2: labels recovered on untrained and trained networks",
    tuple(LabelCell(*cell) for cell in product(MEASURED_NETWORKS, (SMOOTHED, MIXED))),
    (*ACCURACIES, *ERRORS),
    samples=50,
)


# Table 5. What the paper calls the variance of the noise is its standard deviation.
SCALAR_TOLERANCE = 1.0  # the paper counts a success if |λ_r − λ_r*| is below this


def chosen_row(share: GradientShare, head: Head) -> int:
    """Return the paper's r, the row of the head's gradient whose sum has the largest size."""
    return int(share[head.weight_name].sum(1).abs().argmax())


# Of one share: the scalar λ_r, infinite if nothing was found, the label (C,) and the status.
Answer = tuple[float, Tensor | None, str]


def read(recovery: Recovery, head: Head, row: int) -> Answer:
    """Return what a recovery says of λ_r, the scalar that belongs to row r."""
    if recovery.label is None or recovery.feature is None:
        return math.inf, None, recovery.status.name
    p = torch.softmax(head.logits(recovery.feature[None])[0] + head.b, -1)
    return 1 / float(p[row] - recovery.label[row]), recovery.label, recovery.status.name


def pso(target: AttackedNetwork, share: GradientShare) -> Answer:
    """Return the best scalar of the paper's particle swarm as published, and the label there."""
    row = RowRatios.of(target.model, share, head=target.head)
    if row is None:
        return math.inf, None, Status.ZERO_GRADIENT.name
    scalar = best_scalar(row)
    # The search has left its bound: no loss is low enough to end it before.
    return float(scalar), row.labels(scalar[None])[0], "OUT_OF_BOUND"


def scored_scalar(answer: Answer, scalar_true: float, y_true: Tensor) -> Measures:
    """Return how an answer compares with the true scalar λ_r* and the true label (C,)."""
    scalar, label, status = answer
    gap = abs(scalar - scalar_true)
    return {
        "status": status,
        "close": gap < SCALAR_TOLERANCE,
        # The paper's L_s is a mean over successes, as its code computes it.
        "gap": gap if gap < SCALAR_TOLERANCE else None,
        "class": label is not None and int(label.argmax()) == int(y_true.argmax()),
        "L1": None if label is None else float((label - y_true).abs().sum()),
    }


def on_one_row(share: GradientShare, noisy: GradientShare, weight: str, row: int) -> GradientShare:
    """Return the share with the noise of one row of the head's gradient: the paper's protocol."""

    def change(name: str, g: Tensor) -> Tensor:
        chosen = torch.arange(len(g)) == row
        return torch.where(chosen[:, None], noisy[name], g) if name == weight else g

    return share.map(change)


NoiseKind = Callable[[float, torch.Generator], Defense]  # of a standard deviation and a source


@dataclass(frozen=True)
class NoiseCell(Cell):
    """A cell that recovers smoothed labels under one kind and size of noise."""

    kind: str  # the name of the noise
    noise: NoiseKind  # the function that makes the defence
    std: float  # the standard deviation of the noise
    _: KW_ONLY
    samples: int = 100

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.std:.0e}"

    def measured(self, target: AttackedNetwork, number: int, repeat: int) -> Measures:
        sample = target.sample(SMOOTHED.augmentation, number, repeat)
        noise = self.noise(self.std, numbered_generator(NOISE_SEED + repeat, number))
        share = target.share(sample)
        row = chosen_row(share, target.head)
        everything = noise(share)
        one_row = on_one_row(share, noise(share), target.head.weight_name, row)
        answers = {
            "head": _ours(target, everything, head_only=True),
            "whole": _ours(target, everything, head_only=False),
            "one_row": _ours(target, one_row, head_only=True),
            "pso": pso(target, everything),
            "pso_one_row": pso(target, one_row),
        }
        with torch.no_grad():
            p = target.model(sample.x[None]).double().softmax(-1)[0]
        scalar_true = 1 / float(p[row] - sample.y[row])
        return each_way({w: scored_scalar(a, scalar_true, sample.y) for w, a in answers.items()})


def _ours(target: AttackedNetwork, share: GradientShare, *, head_only: bool) -> Answer:
    """Return softleak's answer, from the head's gradient alone or from the whole share."""
    known = Knowledge(SMOOTHED.family, head_only=head_only)
    (found,) = recover(target.subject, [share], known)
    return read(found, target.head, chosen_row(share, target.head))


CLOSE_SHARE, SCALAR_GAP = "close", "gap"  # the names of the paper's values
NOISES: Mapping[str, NoiseKind] = {"Gaussian": GaussianNoise, "Laplace": LaplaceNoise}
NOISE_STDS = (1e-4, 1e-3, 1e-2, 1e-1, 3e-1)  # the last one is beyond the paper's

TABLE5 = Experiment(
    "table5",
    "Table 5: labels recovered under noise",
    tuple(
        NoiseCell("resnet18 kaiming", kind, noise, std)
        for kind, noise in NOISES.items()
        for std in NOISE_STDS
    ),
    (
        Column("noise on all, head", "head_close", Unit.PERCENT, CLOSE_SHARE),
        Column("noise on all, whole", "whole_close", Unit.PERCENT, CLOSE_SHARE),
        Column("noise on one row", "one_row_close", Unit.PERCENT, CLOSE_SHARE),
        Column("PSO by us, on all", "pso_close", Unit.PERCENT),
        Column("PSO by us, on one row", "pso_one_row_close", Unit.PERCENT, CLOSE_SHARE),
        Column("L_s, one row", "one_row_gap", Unit.SMALL, SCALAR_GAP, higher=False),
        Column("class right, noise on all", "head_class", Unit.PERCENT),
        Column("label's L1, noise on all", "head_L1", Unit.SMALL),
        Column("label's L1, whole share", "whole_L1", Unit.SMALL),
    ),
    samples=20,
)  # fmt: skip


RIGHT_PART, PROVED_PART, WRONG_COUNT = "right", "proved", "wrong_unique"


@dataclass(frozen=True)
class BatchCell(KindCell):
    """A cell that recovers every sample of batches of one size; the paper has none."""

    everything: ClassVar[bool] = True
    evidence: ClassVar[bool] = False

    size: int  # the number of samples in a batch, which the attacker knows
    _: KW_ONLY
    samples: int = 100  # the number of batches in one repetition

    @property
    def name(self) -> str:
        return f"{super().name}, B={self.size}"

    def measured(self, target: AttackedNetwork, number: int, repeat: int) -> Measures:
        drawn, share = target.batch(self.kind.augmentation, self.size, number, repeat)
        found = read_batch(target.subject, share, Knowledge(self.kind.family, samples=self.size))
        return scored_batch(found, torch.stack([one.y for one in drawn]))


def scored_batch(found: BatchRecovery, y: Tensor) -> Measures:
    """Return how the samples that were found compare with the true labels (B, C)."""
    labels = [one.label for one in found.samples if one.label is not None]
    off = torch.cdist(y, torch.stack(labels), p=1) if labels else y.new_full((len(y), 1), torch.inf)
    claimed = [one.label for one in found.proved if one.label is not None]
    wrong = sum(float((y - label).abs().sum(1).min()) >= LABEL_TOLERANCE for label in claimed)
    return {
        "status": found.status.name,
        RIGHT_PART: int((off.amin(1) < LABEL_TOLERANCE).sum()) / len(y),
        PROVED_PART: len(claimed) / len(y),
        WRONG_COUNT: wrong,
    }


MEASURED = (  # networks, kinds of label and sizes that are combined
    (
        ("lenet trained", "resnet18_cifar", "resnet18_cifar trained"),
        (ONE_HOT, SMOOTHED, MIXED),
        (2, 3, 4),
    ),
    (("resnet20 converged", "resnet56 converged"), (ONE_HOT, SMOOTHED), (2, 4)),
    (("lenet on cifar100",), (ONE_HOT, SMOOTHED), (2, 4, 8)),
)

BATCH_TABLE = Experiment(
    "batches",
    "Every sample of a batch: labels from one share (not in the paper)",
    tuple(BatchCell(*cell) for group in MEASURED for cell in product(*group)),
    (
        Column("right", RIGHT_PART, Unit.PERCENT),
        Column("proved", PROVED_PART, Unit.PERCENT),
        Column("wrong UNIQUE", WRONG_COUNT, Unit.PLAIN, higher=False),
    ),
    samples=10,
)


PSNR, SSIM, LPIPS = "PSNR", "SSIM", "LPIPS"
_SMALLEST = torch.zeros(1, 7, 7)  # the smallest image that scikit-image compares
QUALITIES = (
    Column("PSNR", PSNR, Unit.DECIBEL, PSNR),
    Column("SSIM", SSIM, Unit.PLAIN, SSIM, check=lambda: ssim(_SMALLEST, _SMALLEST)),
    Column("LPIPS", LPIPS, Unit.PLAIN, LPIPS, higher=False),
)


def qualities(found: Tensor | None, sample: Sample, target: AttackedNetwork) -> Measures:
    """Return PSNR, SSIM and LPIPS of an input, or of the mean image if none was found."""
    norm, image = target.network.normalisation, target.mean_image.double()
    if found is not None and bool(found.isfinite().all()):
        image = norm.invert(found.view_as(sample.x).double())
    truth = norm.invert(sample.x.double())
    scores = {PSNR: psnr(image, truth), SSIM: ssim(image, truth), LPIPS: lpips(image, truth)}
    return {name: finite(value) for name, value in scores.items()}


def finite(value: float) -> float | None:
    """Return the value, or None if it is NaN or infinite, which a record cannot hold."""
    return value if math.isfinite(value) else None


def inverse(target: AttackedNetwork, share: GradientShare) -> tuple[Recovery, Inversion | None]:
    """Return the label of a share, with no family assumed, and the input if there is a feature."""
    (recovery,) = recover(target.subject, [share], Knowledge())
    if recovery.feature is None:
        return recovery, None
    pixel = target.network.normalisation.scale
    return recovery, walk_back(target.model, share, recovery, chain=target.chain, pixel=pixel)


BITS = "bits"  # the measure that says whether an input came back to the last bit


@dataclass(frozen=True)
class InversionCell(KindCell):
    """A cell that inverts a network that is a plain sequence of layers."""

    everything: ClassVar[bool] = True

    _: KW_ONLY
    samples: int = 100

    def measured(self, target: AttackedNetwork, number: int, repeat: int) -> Measures:
        sample = self.kind.drawn(target, [number], repeat)[0]
        recovery, found = inverse(target, target.share(sample))
        return {
            **qualities(None if found is None else found.input, sample, target),
            "L1": None if recovery.label is None else label_error(recovery, sample.y),
            "status": recovery.status.name,
            "predicted": None if found is None else finite(found.psnr_predicted),
            "determined": found is not None and found.determined,
            BITS: found is not None and same_bits(found.input, sample.x),
        }


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
class SamplingProtocol(AugmentationKind):
    """A description of how the samples of one repetition are drawn, by their number alone."""

    samples: int  # how many samples a repetition has

    def drawn(self, target: AttackedNetwork, numbers: Sequence[int], repeat: int) -> list[Sample]:
        images, norm = target.shelf.images(target.network.source), target.network.normalisation
        streams = ((n, numbered_generator(SAMPLE_SEED + repeat, n)) for n in numbers)
        return [self.augmentation(images, norm, n, generator) for n, generator in streams]


SMOOTHED_PROTOCOL = SamplingProtocol("smoothed", smoothed, Smoothed(), 30)
MIXED_PROTOCOL = SamplingProtocol("mixed", mixed, Mixed(2), 45)


@dataclass(frozen=True)
class ExactCell(InversionCell):
    """A cell of inputs of a LeNet computed by exact inversion, which the paper itself has not."""

    @property
    def name(self) -> str:
        return f"{self.kind.name}, {self.subject}, exact inversion"


@dataclass(frozen=True)
class MatchingCell(Cell):
    """A cell of inputs of a LeNet found by gradient matching."""

    everything: ClassVar[bool] = True

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

    def measured_together(
        self, target: AttackedNetwork, numbers: Sequence[int], repeat: int
    ) -> Iterator[Measures]:
        drawn = self.protocol.drawn(target, numbers, repeat)
        for sample, found in zip(drawn, self._matched(target, drawn, repeat), strict=True):
            error = None if found.label is None else (found.label - sample.y).abs().sum()
            yield {
                **qualities(found.input, sample, target),
                "L1": None if error is None else float(error),
                "status": found.status.name,
                "misfit": finite(found.misfit),
                "evaluations": found.evaluations,
            }

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


def _table3() -> Iterator[Cell]:
    """Yield the cells of Table 3: by exact inversion, by matching, and polished by Gauss–Newton."""
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
    (*QUALITIES, Column("label's L1", ERROR, Unit.SMALL, ERROR, higher=False)),
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

TABLES = (TABLE1, TABLE2, TABLE3, TABLE4, TABLE5, FCN, BATCH_TABLE)
