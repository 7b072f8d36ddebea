"""Make the sample that comes with softleak: gradients of real images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from softleak.audit.metrics import Truth
from softleak.audit.run import NamedShare
from softleak.core.client import capture
from softleak.io.formats import tensor_digest
from softleak.paper import data, models

KINDS: Mapping[str, data.Augmentation] = {
    "one-hot": data.Hard(),
    "smoothed": data.Smoothing(),
    "mixed": data.Mixup(),
    "arbitrary": data.Dirichlet(),
}
NORMALISATION = data.CIFAR10_NORM


def sample_shares(each: int, seed: int) -> Iterator[NamedShare]:
    """Yield ``each`` gradients for every kind of label, and the truth to score them by."""
    model, images = models.trained_lenet(), data.embedded()
    for number, (kind, augmentation) in enumerate(KINDS.items()):
        drawn = data.samples(images, augmentation, each, seed + number, NORMALISATION)
        for index, sample in enumerate(drawn, 1):
            share = capture(model, sample.x, sample.y)
            digest, truth = tensor_digest(share), Truth(sample.y, sample.x)
            yield NamedShare(f"{kind} {index}", share, truth, digest)
