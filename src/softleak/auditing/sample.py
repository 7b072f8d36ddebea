"""This module makes the sample that comes with softleak: gradients of real images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from softleak import data, models
from softleak.auditing.audit_run import NamedShare
from softleak.auditing.tensor_digest import tensor_digest
from softleak.auditing.truth import Truth
from softleak.client import capture

KINDS: Mapping[str, data.Augmentation] = {
    "one-hot": data.Hard(),
    "smoothed": data.Smoothing(),
    "mixed": data.Mixup(),
    "arbitrary": data.Dirichlet(),
}
NORMALISATION = data.CIFAR10_NORM


def sample_shares(each: int, seed: int) -> Iterator[NamedShare]:
    """Return ``each`` gradients for every kind of label.

    Truth goes along, to score and nothing else.
    """
    model, images = models.trained_lenet(), data.embedded()
    for number, (kind, augmentation) in enumerate(KINDS.items()):
        drawn = data.samples(images, augmentation, each, seed + number, NORMALISATION)
        for index, sample in enumerate(drawn, 1):
            share = capture(model, sample.x, sample.y)
            truth = Truth(sample.y, sample.x)
            yield NamedShare(f"{kind} {index}", share, truth, tensor_digest(share))
