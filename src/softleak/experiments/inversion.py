"""Cells of App. D: inputs computed layer by layer from the recovered label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import softleak as sl
from softleak.data import Normalisation, Sample
from softleak.data.imageset import resize
from softleak.experiments.experiment import Attack
from softleak.experiments.images import finite, qualities
from softleak.experiments.kind_cell import KindCell
from softleak.experiments.shelf import Shelf
from softleak.experiments.target import Target
from softleak.metrics import label_error, same_bits
from softleak.sweep import Measures

BITS = "bits"


@dataclass(frozen=True)
class InversionCell(KindCell):
    """Inputs of a network that is a chain."""

    samples: int = 100

    def prepare(self, shelf: Shelf) -> Attack:
        target = Target.of(self.network, shelf, everything=True)
        inverse, nothing = inverter(target), mean_image(target)

        def measured(sample: Sample) -> Measures:
            return inverted(*inverse(target.share(sample)), sample, target, nothing)

        return self.one_by_one(target, measured)


Inverse = Callable[[sl.GradientShare], tuple[sl.Recovery, sl.Inversion | None]]


def inverter(target: Target) -> Inverse:
    """Label first, no family given, then the input; what can be prepared is, once."""
    chain = sl.Chain.of(target.model, target.head, target.network.input_shape)
    pixel = pixels(target.network.normalisation)

    def inverse(share: sl.GradientShare) -> tuple[sl.Recovery, sl.Inversion | None]:
        recovery = sl.recover_label(
            target.model, share, evidence=target.relations, head=target.head
        )
        if recovery.feature is None:
            return recovery, None
        return recovery, sl.invert(target.model, share, recovery, chain=chain, pixel=pixel)

    return inverse


def inverted(
    recovery: sl.Recovery, found: sl.Inversion | None, sample: Sample, target: Target,
    nothing: Tensor,
) -> Measures:  # fmt: skip
    """An inversion beside the truth."""
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
    """What one unit of a normalised input is worth."""
    return torch.tensor(norm.std, dtype=torch.double).view(-1, 1, 1)


def mean_image(target: Target) -> Tensor:
    """The data set's, of the network's size: the answer of somebody who has seen nothing."""
    mean = target.shelf.images(target.network.source).mean()
    return resize(mean[None], target.network.size)[0]
