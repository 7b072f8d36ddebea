"""Figures 1 and 2: the loss over the scalar λ_r, and the labels along it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import softleak as sl
from softleak.data import Sample, smooth
from softleak.errors import DataError
from softleak.experiments.noise import chosen_row, read
from softleak.experiments.target import Target
from softleak.labels.classic import Variance, Vectorised
from softleak.labels.classic.row import Row
from softleak.report.figures.canvas import Drawing, pyplot

NEAREST, FARTHEST, POINTS = 0.5, 6.5, 2000
EPSILON = 0.3696  # the paper's, of its test image 2964
IMAGE = 2964
SHOWN = 6


@dataclass(frozen=True, eq=False)
class Line:
    """λ_r (S,) on the answer's side of zero, the labels (S, C) and losses (S,) there."""

    name: str
    scalars: Tensor
    labels: Tensor
    losses: Tensor
    found: float


def line(drawing: Drawing, wanted: str, otherwise: str) -> Line:
    """Of one smoothed image: the paper's own where it is at hand."""
    name, network = drawing.network(wanted, otherwise)
    target = Target.of(network, drawing.shelf, evidence=False)
    images = drawing.shelf.images(network.source)
    index = IMAGE % len(images)
    y = smooth(int(images.labels[index]), images.classes, EPSILON)
    share = target.share(Sample(network.normalisation.apply(images.pixels(index)), y))
    row = Row.of(target.model, share, head=target.head)
    recovery = sl.recover_label(
        target.model, share, family=sl.Smoothed(), evidence=False, head=target.head
    )
    found = read(recovery, target.head, chosen_row(share, target.head)).scalar
    if row is None or not math.isfinite(found):
        raise DataError(f"nothing can be drawn of {name}: {recovery.message}")
    reach = max(FARTHEST, 1.5 * abs(found))
    scalars = math.copysign(1, found) * torch.linspace(NEAREST, reach, POINTS, dtype=torch.double)
    objective = Vectorised(row, Variance())
    labels = torch.stack([objective.label(scalar) for scalar in scalars])
    return Line(name, scalars, labels, objective(scalars), found)


def losses(drawing: Drawing) -> None:
    """Figure 1: untrained and trained; on a logarithmic scale false minima and true ones differ."""
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
    """Figure 2: labels of six scalars; every one without a negative entry is a label."""
    plt = pyplot()
    each = line(drawing, "resnet18", "resnet18")
    figure, panels = plt.subplots(2, SHOWN // 2, figsize=(10, 5), layout="constrained")
    near = torch.linspace(0.7, 1.5, SHOWN, dtype=torch.double) * each.found
    for axes, scalar in zip(panels.flat, near, strict=True):
        i = int((each.scalars - scalar).abs().argmin())
        valid = bool((each.labels[i] >= 0).all())
        axes.bar(range(each.labels.shape[1]), each.labels[i], color="C0" if valid else "C3")
        axes.axhline(0, color="black", linewidth=0.6)
        words = "a label" if valid else "no label"
        axes.set(title=f"λ = {each.scalars[i]:.2f}, loss {each.losses[i]:.1e}: {words}")
    drawing.save(figure)
