"""This module draws Figures 3, 4 and 5: recovered inputs of FCN-4."""

from __future__ import annotations

import math

from torch import Tensor

from softleak.data import Sample
from softleak.experiments.attacked_network import AttackedNetwork
from softleak.experiments.inversion import inverter, mean_image
from softleak.experiments.kinds import SMOOTHED, AugmentationKind
from softleak.matching import (
    L2,
    LBFGS,
    Adam,
    Cosine,
    RandomLabel,
    TotalVariation,
    reconstruct_many,
)
from softleak.metrics import psnr
from softleak.report.figures.canvas import Drawing, pyplot

SHEET_INPUTS, COMPARED_INPUTS = 100, 5  # images per figure, unless --samples says otherwise
BRIEF_BUDGET = 0.02  # the fraction of the paper's steps that is run without --full


def _target(drawing: Drawing) -> AttackedNetwork:
    _, network = drawing.network("fcn4", "fcn4 on cifar10")
    return AttackedNetwork.of(network, drawing.shelf, everything=True)


def computed(target: AttackedNetwork, samples: list[Sample]) -> list[Tensor]:
    """Return each input in pixels (C, H, W), or the mean image where none was found."""
    inverse, nothing = inverter(target), mean_image(target)
    found = (inverse(target.share(sample))[1] for sample in samples)
    undo = target.network.normalisation.invert
    return [
        nothing if each is None else undo(each.input.view_as(sample.x))
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
        axes.imshow(image.clamp(0, 1).permute(1, 2, 0).numpy())
    drawing.save(figure)


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
        nothing = mean_image(target)
        rows[name] = [nothing if r.input is None else undo(r.input) for r in found]
    rows["softleak"] = computed(target, samples)
    figure, panels = plot.subplots(
        len(rows), count, figsize=(1.4 * count, 1.6 * len(rows)), squeeze=False
    )
    for axes, (name, images) in zip(panels, rows.items(), strict=True):
        mean = sum(map(psnr, images, rows["ground truth"])) / count
        words = name if name == "ground truth" else f"{name}\n{mean:.1f} dB"
        axes[0].set_ylabel(words)
        for each, image in zip(axes, images, strict=True):
            each.imshow(image.clamp(0, 1).permute(1, 2, 0).numpy())
            each.set(xticks=[], yticks=[])
    drawing.save(figure)
