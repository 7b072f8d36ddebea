"""Draw the paper's figures from runs of this code (extra `plots`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softleak.audit.metrics import psnr
from softleak.core.errors import DataError, import_extra
from softleak.core.families import Smoothed
from softleak.io.atomic import replacing
from softleak.labels.recover import recover_label
from softleak.matching.optimisers import LBFGS, Adam
from softleak.matching.problems import L2, Cosine, TotalVariation
from softleak.matching.reconstruct import reconstruct_many
from softleak.matching.tasks import RandomLabel
from softleak.paper import tables
from softleak.paper.classic import RowRatios, Variance
from softleak.paper.data import Sample, smooth
from softleak.paper.experiment import Cell, Experiment
from softleak.paper.networks import (
    MIXED,
    NETWORKS,
    SMOOTHED,
    AttackedNetwork,
    AugmentationKind,
    Network,
    Shelf,
)
from softleak.paper.sweep import Records, numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """A figure to be drawn."""

    shelf: Shelf  # the data sets and trained networks at hand
    records: Records  # what was measured so far
    path: Path  # the file to write
    samples: int | None = None  # how many images are shown, if not as many as the paper shows
    full: bool = False  # whether gradient matching takes as many steps as in the paper

    def network(self, wanted: str, otherwise: str) -> tuple[str, Network]:
        """Return name and network: the paper's, or another one whose files are at hand."""
        name = otherwise if NETWORKS[wanted].lacking(self.shelf) else wanted
        return name, NETWORKS[name]

    def mean(self, experiment: Experiment, cell: Cell, measure: str) -> float | None:
        """Return the mean of a measure over the samples of a cell, None if it was not measured."""
        values = numbers(self.records.of(experiment.name, cell.name), measure)
        return fmean(values) if values else None

    def save(self, figure: Figure) -> None:
        with replacing(self.path) as temporary:
            figure.savefig(temporary, dpi=110, format="png")
        pyplot().close(figure)


def pyplot() -> ModuleType:
    """Return matplotlib's pyplot, which opens no window; raises ``MissingExtra`` without it."""
    matplotlib = import_extra("matplotlib", "figures need matplotlib", "plots")
    matplotlib.use("agg")
    return import_module("matplotlib.pyplot")


def labels_by_size(drawing: Drawing) -> None:
    """Draw a panel per network and a line per kind of label: what is right, and what is proved."""
    # By network and kind of label: the sizes of batches, and two means over batches of each.
    lines: dict[str, dict[str, list[tuple[int, float, float]]]] = {}
    for cell in tables.BATCH_TABLE.cells:
        right, proved = (
            drawing.mean(tables.BATCH_TABLE, cell, m)
            for m in (tables.RIGHT_PART, tables.PROVED_PART)
        )
        if isinstance(cell, tables.BatchCell) and right is not None and proved is not None:
            kinds = lines.setdefault(cell.subject, {})
            kinds.setdefault(cell.kind.name, []).append((cell.size, right, proved))
    if not lines:
        raise DataError(
            "the figure of batches is drawn from records: run `softleak reproduce batches`"
        )
    figure, panels = pyplot().subplots(
        1, len(lines), figsize=(3.4 * len(lines), 3.4), layout="constrained", squeeze=False
    )
    for axes, (network, kinds) in zip(panels[0], lines.items(), strict=True):
        for kind, line in kinds.items():
            sizes, right_parts, proved_parts = zip(*line, strict=True)
            (drawn,) = axes.plot(sizes, right_parts, "o-", label=kind)
            axes.plot(sizes, proved_parts, "x--", color=drawn.get_color())
        axes.set(title=network, xlabel="samples in the batch", ylim=(-0.03, 1.03))
        axes.legend(fontsize=7)
    panels[0][0].set_ylabel("part of labels: right (—), proved (– –)")
    drawing.save(figure)


SHEET_INPUTS, COMPARED_INPUTS = 100, 5  # images per figure, unless --samples says otherwise
BRIEF_BUDGET = 0.02  # the fraction of the paper's steps that is run without --full


def _target(drawing: Drawing) -> AttackedNetwork:
    _, network = drawing.network("fcn4", "fcn4 on cifar10")
    return AttackedNetwork.of(network, drawing.shelf, everything=True)


def computed(target: AttackedNetwork, samples: list[Sample]) -> list[Tensor]:
    """Return each input in pixels (C, H, W), or the mean image where none was found."""
    found = (tables.inverse(target, target.share(sample))[1] for sample in samples)
    undo = target.network.normalisation.invert
    return [
        target.mean_image if each is None else undo(each.input.view_as(sample.x))
        for each, sample in zip(found, samples, strict=True)
    ]


def sheet(drawing: Drawing, kind: AugmentationKind) -> None:
    """Draw Figure 4 or 5: a hundred inputs, as computed."""
    plot = pyplot()  # which says what is missing, before anything is computed
    target, count = _target(drawing), drawing.samples or SHEET_INPUTS
    samples = [target.sample(kind.augmentation, number) for number in range(count)]
    side = math.ceil(math.sqrt(count))
    figure, panels = plot.subplots(
        side, side, figsize=(side, side), squeeze=False, gridspec_kw={"wspace": 0, "hspace": 0}
    )
    for axes in panels.flat:
        axes.axis("off")
    for axes, image in zip(panels.flat, computed(target, samples), strict=False):
        show(axes, image)
    drawing.save(figure)


def show(axes: Axes, image: Tensor) -> None:
    """Show an image (C, H, W) in pixels."""
    axes.imshow(image.clamp(0, 1).permute(1, 2, 0).numpy())


def comparison(drawing: Drawing) -> None:
    """Draw Figure 3: the truth, gradient matching with free labels (DLG), and our inputs."""
    plot = pyplot()
    target, count = _target(drawing), drawing.samples or COMPARED_INPUTS
    samples = [target.sample(SMOOTHED.augmentation, number) for number in range(count)]
    undo, part = target.network.normalisation.invert, 1.0 if drawing.full else BRIEF_BUDGET
    rows = {"ground truth": [undo(sample.x) for sample in samples]}
    shares = [target.share(sample) for sample in samples]
    for name, objective, way, priors in (
        ("L2", L2(), LBFGS(lr=0.3).part(0.0, part), []),
        ("cosine", Cosine(), Adam(lr=0.02, steps=7000).part(0.0, part), [TotalVariation(1e-6)]),
    ):
        found = reconstruct_many(
            target.model, shares, objective=objective, optimiser=way, priors=priors,
            label=RandomLabel(), head=target.head,
        )  # fmt: skip
        rows[name] = [target.mean_image if r.input is None else undo(r.input) for r in found]
    rows["softleak"] = computed(target, samples)
    figure, panels = plot.subplots(
        len(rows), count, figsize=(1.4 * count, 1.6 * len(rows)), squeeze=False
    )
    for axes, (name, images) in zip(panels, rows.items(), strict=True):
        mean = sum(map(psnr, images, rows["ground truth"])) / count
        words = name if name == "ground truth" else f"{name}\n{mean:.1f} dB"
        axes[0].set_ylabel(words)
        for each, image in zip(axes, images, strict=True):
            show(each, image)
            each.set(xticks=[], yticks=[])
    drawing.save(figure)


WAYS = {
    "head": "noise on all, head only",
    "whole": "noise on all, whole share",
    "one_row": "noise on one row",
    "pso_one_row": "one row, the paper's PSO",
}


def errors_under_noise(drawing: Drawing) -> None:
    """Draw a panel per kind of noise and a line per way to read the share."""
    figure, panels = pyplot().subplots(
        1, len(tables.NOISES), figsize=(10, 3.6), layout="constrained"
    )
    drawn = 0
    for axes, kind in zip(panels, tables.NOISES, strict=True):
        cells = [
            c for c in tables.TABLE5.cells if isinstance(c, tables.NoiseCell) and c.kind == kind
        ]
        for way, words in WAYS.items():
            means = {cell.std: drawing.mean(tables.TABLE5, cell, f"{way}_L1") for cell in cells}
            measured = {std: mean for std, mean in means.items() if mean is not None}
            drawn += len(measured)
            axes.loglog(list(measured), list(measured.values()), "o-", label=words)
        axes.set(title=f"{kind} noise", xlabel="standard deviation", ylabel="mean L1 error")
        axes.legend(fontsize=7)
    if not drawn:
        raise DataError("figure 6 is drawn from Table 5's records: run `softleak reproduce table5`")
    drawing.save(figure)


SCALAR_NEAREST = 0.5  # the smallest size of the scalar that is drawn
SCALAR_FARTHEST = 6.5  # the largest one, unless the answer lies beyond it
SCALAR_POINTS = 2000  # scalars at which loss and label are computed
SCALAR_IMAGE = 2964  # the paper's test image
SCALAR_EPSILON = 0.3696  # the smoothing of its label in the paper
SCALAR_LABELS = 6  # labels that Figure 2 shows, around the answer


@dataclass(frozen=True, eq=False)
class ScalarLine:
    """Scalars λ_r (S,) on the side of the answer ``found``, with labels (S, C) and losses (S,)."""

    name: str
    scalars: Tensor
    labels: Tensor
    losses: Tensor
    found: float


def line(drawing: Drawing, wanted: str, otherwise: str) -> ScalarLine:
    """Return the line of one smoothed image: the paper's own where it is at hand."""
    name, network = drawing.network(wanted, otherwise)
    target = AttackedNetwork.of(network, drawing.shelf, evidence=False)
    images = drawing.shelf.images(network.source)
    index = SCALAR_IMAGE % len(images)
    y = smooth(int(images.labels[index]), images.classes, SCALAR_EPSILON)
    share = target.share(Sample(network.normalisation.apply(images.pixels(index)), y))
    row = RowRatios.of(target.model, share, head=target.head)
    recovery = recover_label(
        target.model, share, family=Smoothed(), evidence=False, head=target.head
    )
    found = tables.read(recovery, target.head, tables.chosen_row(share, target.head))[0]
    if row is None or not math.isfinite(found):
        raise DataError(f"nothing can be drawn of {name}: {recovery.message}")
    reach = max(SCALAR_FARTHEST, 1.5 * abs(found))
    scalars = math.copysign(1, found) * torch.linspace(
        SCALAR_NEAREST, reach, SCALAR_POINTS, dtype=torch.double
    )
    labels = row.labels(scalars)
    return ScalarLine(name, scalars, labels, Variance()(labels), found)


def losses(drawing: Drawing) -> None:
    """Draw Figure 1: on a logarithmic scale false minima differ from true ones."""
    plt = pyplot()
    lines = [
        line(drawing, "resnet18", "resnet18"),
        line(drawing, "resnet18_cifar trained", "lenet trained"),
    ]
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    for axes, each in zip(panels, lines, strict=True):
        axes.semilogy(each.scalars, each.losses.clamp_min(1e-16))
        axes.axvline(each.found, linestyle=":", color="grey")
        axes.set(title=f"{each.name}: λ = {each.found:.4f}", xlabel="λ", ylabel="variance loss")
    drawing.save(figure)


def labels_along(drawing: Drawing) -> None:
    """Draw Figure 2: what six scalars would mean. A label has no negative entry."""
    plt = pyplot()
    each = line(drawing, "resnet18", "resnet18")
    figure, panels = plt.subplots(2, SCALAR_LABELS // 2, figsize=(10, 5), layout="constrained")
    near = torch.linspace(0.7, 1.5, SCALAR_LABELS, dtype=torch.double) * each.found
    for axes, scalar in zip(panels.flat, near, strict=True):
        i = int((each.scalars - scalar).abs().argmin())
        valid = bool((each.labels[i] >= 0).all())
        axes.bar(range(each.labels.shape[1]), each.labels[i], color="C0" if valid else "C3")
        axes.axhline(0, color="black", linewidth=0.6)
        words = "a label" if valid else "not a label"
        axes.set(title=f"λ = {each.scalars[i]:.2f}, loss {each.losses[i]:.1e}: {words}")
    drawing.save(figure)


FIGURES: Mapping[str, Callable[[Drawing], None]] = {
    "figure1": losses,
    "figure2": labels_along,
    "figure3": comparison,
    "figure4": partial(sheet, kind=SMOOTHED),
    "figure5": partial(sheet, kind=MIXED),
    "figure6": errors_under_noise,
    "figure_batches": labels_by_size,
}
