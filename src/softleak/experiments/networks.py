"""The networks that are measured, by name, each with its weights, data and input size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from softleak import data, models
from softleak.experiments.seeds import SEEDS
from softleak.experiments.shelf import CIFAR10, CIFAR100, FLOWERS17, IMAGENET, DataSet, Shelf
from softleak.models.checkpoint import copy_weights

Initialise = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Network:
    """A model as it is measured.

    Attributes:
        make: the function that builds the model with random weights.
        weights: the file of trained weights on the shelf; empty for an untrained model.
        initialise: the function that replaces the random weights; None leaves PyTorch's own.
        source: the data set of its inputs.
        size: the height and width of an input in pixels.
        normalisation: the normalisation that turns pixels into inputs.
    """

    make: Callable[[], nn.Module]
    weights: str = ""
    initialise: Initialise | None = None
    source: DataSet = CIFAR10
    size: int = 32
    normalisation: data.Normalisation = data.CIFAR10_NORM

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Return the shape (C, H, W) of one input."""
        return 3, self.size, self.size

    def lacking(self, shelf: Shelf) -> str:
        """Return the files that are needed and not on the shelf; empty if all are there."""
        return shelf.lacks(self.source, self.weights)

    def build(self, shelf: Shelf) -> nn.Module:
        """Return the model in eval mode, with the same weights every time."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(SEEDS.weights)
            model = self.make()
            model = model if self.initialise is None else self.initialise(model)
        if self.weights:
            copy_weights(model, shelf.tensors(self.weights), self.weights)
        return model.eval()

    def sample(self, shelf: Shelf, kind: data.Augmentation, number: int, seed: int) -> data.Sample:
        """Return one sample of a stream, resized to this network's input.

        Args:
            shelf: the data packs.
            kind: the augmentation that makes the input and the label.
            number: the number of the sample in the stream.
            seed: the seed of the stream.
        """
        images = shelf.images(self.source)
        size = None if images.shape == self.input_shape else self.size
        return data.nth_sample(images, kind, number, seed, self.normalisation, size)


def _mlp(activation: Callable[[], nn.Module]) -> Network:
    """Return an untrained fully connected network with this activation."""
    return Network(partial(models.mlp, 3 * 32 * 32, activation=activation))


def _converged(make: Callable[[], nn.Module], pack: str) -> Network:
    """Return a network that others have trained until its loss was almost zero."""
    return Network(make, weights=pack, normalisation=data.IMAGENET_NORM)


def _resnet50(classes: int, source: DataSet, size: int) -> Network:
    """Return the ResNet50 of Table 1, whose weights are drawn uniformly."""
    make = partial(models.resnet50, classes=classes)
    return Network(make, initialise=models.uniform_, source=source, size=size)


_alexnet = partial(models.alexnet, classes=17)
_resnet18 = partial(models.resnet18, classes=10)
_resnet18_cifar = partial(models.resnet18_cifar, classes=10)
_on_flowers = partial(Network, source=FLOWERS17, size=224)

NETWORKS: Mapping[str, Network] = {
    "lenet": Network(models.lenet, initialise=models.uniform_),
    "lenet default": Network(models.lenet),
    "lenet trained": Network(models.trained_lenet),
    "resnet18": Network(_resnet18),
    "resnet18 kaiming": Network(_resnet18, initialise=models.kaiming_),
    "resnet18 trained": Network(_resnet18, "resnet18.safetensors"),
    "resnet18_cifar": Network(_resnet18_cifar),
    "resnet18_cifar trained": Network(_resnet18_cifar, "resnet18_cifar.safetensors"),
    "resnet20 converged": _converged(models.resnet20, "cifar10_resnet20.npz"),
    "resnet56 converged": _converged(models.resnet56, "cifar10_resnet56.npz"),
    "alexnet": _on_flowers(_alexnet, initialise=models.uniform_),
    "alexnet trained": _on_flowers(_alexnet, "alexnet_flowers.safetensors"),
    "resnet18 on flowers": _on_flowers(partial(models.resnet18, classes=17)),
    "resnet18 on flowers trained": _on_flowers(
        partial(models.resnet18_cifar, classes=17), "resnet18_flowers.safetensors"
    ),
    "resnet50 on cifar100": _resnet50(100, CIFAR100, 32),
    "resnet50 on flowers": _resnet50(17, FLOWERS17, 224),
    "resnet50 on imagenet": _resnet50(1000, IMAGENET, 224),
    "lenet on cifar100": Network(
        partial(models.lenet, classes=100), initialise=models.uniform_, source=CIFAR100
    ),
    "resnet18 on cifar100": Network(partial(models.resnet18_cifar, classes=100), source=CIFAR100),
    "fcn4": Network(partial(models.fcn4, 17, 64), source=FLOWERS17, size=64),
    "fcn4 on cifar10": Network(partial(models.fcn4, 10, 32)),
    "vgg": Network(models.vgg),
    "vit": Network(models.vit),
    "resnet50 at 224": Network(partial(models.resnet50, classes=10), size=224),
    "resnet50 at 224, uniform": _resnet50(10, CIFAR10, 224),
    "mlp ReLU": _mlp(nn.ReLU),
    "mlp LeakyReLU": _mlp(nn.LeakyReLU),
    "mlp Sigmoid": _mlp(nn.Sigmoid),
    "mlp Tanh": _mlp(nn.Tanh),
}
