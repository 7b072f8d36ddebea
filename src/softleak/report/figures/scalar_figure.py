"""This module draws Figures 1 and 2: the loss over the scalar λ_r, and labels along it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.data import Sample, smooth
from softleak.errors import DataError
from softleak.experiments.attacked_network import AttackedNetwork
from softleak.experiments.noise_cells import chosen_row, read
from softleak.families import Smoothed
from softleak.labels.classic import Variance, Vectorised
from softleak.labels.classic.row import RowRatios
from softleak.labels.recover import recover_label
from softleak.report.figures.canvas import Drawing, pyplot


@dataclass(frozen=True)
class ScalarFigureSettings:
    """These are the settings of Figures 1 and 2.

    Attributes:
        nearest: the smallest size of the scalar that is drawn.
        farthest: the largest one, unless the answer lies beyond it.
        points: scalars at which loss and label are computed.
        image: the paper's test image.
        epsilon: the smoothing of its label in the paper.
        labels: labels that Figure 2 shows, around the answer.
    """

    nearest: float = 0.5
    farthest: float = 6.5
    points: int = 2000
    image: int = 2964
    epsilon: float = 0.3696
    labels: int = 6


SCALAR_FIGURES = ScalarFigureSettings()


@dataclass(frozen=True, eq=False)
class ScalarLine:
    """This holds scalars λ_r (S,) on the answer's side of zero, with labels and losses.

    The labels are (S, C) and the losses (S,); ``found`` is the scalar of the answer.
    """

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
    index = SCALAR_FIGURES.image % len(images)
    y = smooth(int(images.labels[index]), images.classes, SCALAR_FIGURES.epsilon)
    share = target.share(Sample(network.normalisation.apply(images.pixels(index)), y))
    row = RowRatios.of(target.model, share, head=target.head)
    recovery = recover_label(
        target.model, share, family=Smoothed(), evidence=False, head=target.head
    )
    found = read(recovery, target.head, chosen_row(share, target.head)).scalar
    if row is None or not math.isfinite(found):
        raise DataError(f"nothing can be drawn of {name}: {recovery.message}")
    reach = max(SCALAR_FIGURES.farthest, 1.5 * abs(found))
    scalars = math.copysign(1, found) * torch.linspace(
        SCALAR_FIGURES.nearest, reach, SCALAR_FIGURES.points, dtype=torch.double
    )
    objective = Vectorised(row, Variance())
    labels = torch.stack([objective.label(scalar) for scalar in scalars])
    return ScalarLine(name, scalars, labels, objective(scalars), found)


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
    figure, panels = plt.subplots(
        2, SCALAR_FIGURES.labels // 2, figsize=(10, 5), layout="constrained"
    )
    near = torch.linspace(0.7, 1.5, SCALAR_FIGURES.labels, dtype=torch.double) * each.found
    for axes, scalar in zip(panels.flat, near, strict=True):
        i = int((each.scalars - scalar).abs().argmin())
        valid = bool((each.labels[i] >= 0).all())
        axes.bar(range(each.labels.shape[1]), each.labels[i], color="C0" if valid else "C3")
        axes.axhline(0, color="black", linewidth=0.6)
        words = "a label" if valid else "not a label"
        axes.set(title=f"λ = {each.scalars[i]:.2f}, loss {each.losses[i]:.1e}: {words}")
    drawing.save(figure)
