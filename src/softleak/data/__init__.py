"""This package holds images, sentences, labels and the samples made of them."""

from softleak.data.augment import Sample, mixup, one_hot, smooth
from softleak.data.cifar import load_cifar
from softleak.data.cifar_layout import Split
from softleak.data.draw import nth_sample, numbered_generator, samples
from softleak.data.embedded import embedded
from softleak.data.embedded_text import verses
from softleak.data.image_folder import load_folder
from softleak.data.imageset import ImageSet
from softleak.data.load import load
from softleak.data.normalisation import CIFAR10_NORM, IMAGENET_NORM, Normalisation
from softleak.data.pack import load_pack
from softleak.data.samplers import (
    Augmentation,
    Dirichlet,
    Hard,
    Mixup,
    SmoothedMixup,
    Smoothing,
)

__all__ = [
    "CIFAR10_NORM",
    "IMAGENET_NORM",
    "Augmentation",
    "Dirichlet",
    "Hard",
    "ImageSet",
    "Mixup",
    "Normalisation",
    "Sample",
    "SmoothedMixup",
    "Smoothing",
    "Split",
    "embedded",
    "load",
    "load_cifar",
    "load_folder",
    "load_pack",
    "mixup",
    "nth_sample",
    "numbered_generator",
    "one_hot",
    "samples",
    "smooth",
    "verses",
]
