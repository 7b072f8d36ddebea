"""The networks that are measured, by name, and where their data and weights lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from torch import nn

from softleak import data, models
from softleak.data import ImageSet


@dataclass(frozen=True)
class Shelf:
    """Folders of data packs and of trained weights, either of which may be missing."""

    data: Path | None = None
    weights: Path | None = None
    opened: dict[str, ImageSet] = field(default_factory=dict, compare=False)

    def images(self, network: Network) -> ImageSet:
        """The network's data set; CIFAR-10 networks make do with the embedded images."""
        if network.images not in self.opened:
            path = self.path(network.images)
            self.opened[network.images] = data.load(path) if path else data.embedded()
        return self.opened[network.images]

    def path(self, name: str | None) -> Path | None:
        """Where a file lies, if it is on the shelf."""
        folders = [folder for folder in (self.data, self.weights) if folder is not None]
        found = [folder / name for folder in folders if name and (folder / name).is_file()]
        return found[0] if found else None

    def lacks(self, network: Network) -> str:
        """The files the network cannot do without, empty if all are here."""
        needed = [network.weights] if network.weights else []
        needed += [network.images] if network.images != CIFAR else []
        return ", ".join(name for name in needed if self.path(name) is None)


CIFAR, FLOWERS = "cifar10_test.npz", "flowers17_224.npz"


@dataclass(frozen=True)
class Network:
    """A model as measured: initialisation or weights, data set, input size."""

    make: Callable[[], nn.Module]
    weights: str = ""
    uniform: bool = False
    images: str = CIFAR
    size: int = 32
    normalisation: data.Normalisation = data.CIFAR10_NORM
    head: str | None = None

    @property
    def resize(self) -> int | None:
        """What CIFAR images are resized to, if they are."""
        return self.size if self.images == CIFAR and self.size != 32 else None

    def build(self, shelf: Shelf) -> nn.Module:
        """The model with its weights, in eval mode."""
        model = self.make()
        if self.uniform:
            models.uniform_(model)
        path = shelf.path(self.weights)
        if path is not None:
            models.load_weights(model, path)
        return model.eval()


def _mlp(activation: Callable[[], nn.Module]) -> Network:
    return Network(partial(models.mlp, 3 * 32 * 32, activation=activation))


def _converged(make: Callable[[], nn.Module], pack: str) -> Network:
    return Network(make, weights=pack, normalisation=data.IMAGENET_NORM)


NETWORKS: Mapping[str, Network] = {
    "lenet": Network(models.lenet, uniform=True),
    "lenet default": Network(models.lenet),
    "lenet trained": Network(models.trained_lenet),
    "resnet18": Network(partial(models.resnet18, classes=10)),
    "resnet18 trained": Network(partial(models.resnet18, classes=10), "resnet18.safetensors"),
    "resnet18_cifar": Network(partial(models.resnet18_cifar, classes=10)),
    "resnet18_cifar trained": Network(
        partial(models.resnet18_cifar, classes=10), "resnet18_cifar.safetensors"
    ),
    "resnet20 converged": _converged(models.resnet20, "cifar10_resnet20.npz"),
    "resnet56 converged": _converged(models.resnet56, "cifar10_resnet56.npz"),
    "alexnet": Network(partial(models.alexnet, classes=17), uniform=True, images=FLOWERS, size=224),
    "vgg": Network(models.vgg),
    "vit": Network(models.vit),
    "resnet50 at 224": Network(partial(models.resnet50, classes=10), size=224),
    "resnet50 at 224, uniform": Network(
        partial(models.resnet50, classes=10), uniform=True, size=224
    ),
    "mlp ReLU": _mlp(nn.ReLU),
    "mlp LeakyReLU": _mlp(nn.LeakyReLU),
    "mlp Sigmoid": _mlp(nn.Sigmoid),
    "mlp Tanh": _mlp(nn.Tanh),
}
