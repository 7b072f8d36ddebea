"""Images, sentences, labels and the samples made of them."""

from softleak.core.input_spec import CIFAR10_NORM, IMAGENET_NORM, Normalisation
from softleak.paper.data.load import (
    ImageSet,
    Split,
    embedded,
    load,
    load_cifar,
    load_folder,
    load_pack,
    verses,
)
from softleak.paper.data.samples import (
    Augmentation,
    Dirichlet,
    Hard,
    Mixup,
    Sample,
    SmoothedMixup,
    Smoothing,
    mixup,
    nth_sample,
    numbered_generator,
    one_hot,
    samples,
    smooth,
)

__all__ = [
    "CIFAR10_NORM", "IMAGENET_NORM", "Augmentation", "Dirichlet", "Hard", "ImageSet", "Mixup",
    "Normalisation", "Sample", "SmoothedMixup", "Smoothing", "Split", "embedded", "load",
    "load_cifar", "load_folder", "load_pack", "mixup", "nth_sample", "numbered_generator",
    "one_hot", "samples", "smooth", "verses",
]  # fmt: skip
