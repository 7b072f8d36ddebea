"""This module holds cells of App. D: inputs that are computed layer by layer from the recovered
label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.data import Normalisation, Sample
from softleak.data.imageset import resize
from softleak.experiments.attacked_network import AttackedNetwork
from softleak.experiments.experiment import Attack
from softleak.experiments.image_scores import finite, qualities
from softleak.experiments.kind_cell import KindCell
from softleak.experiments.shelf import Shelf
from softleak.inversion.chain import Chain
from softleak.inversion.walk import Inversion, invert
from softleak.knowledge import Knowledge
from softleak.labels.recover import recover
from softleak.metrics import label_error, same_bits
from softleak.results import Recovery
from softleak.share import GradientShare
from softleak.sweep import Measures

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
