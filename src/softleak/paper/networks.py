"""A network of the paper, prepared so that many shares of its clients can be attacked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from softleak import io as tensor_files
from softleak.core.client import capture
from softleak.core.errors import DataError, ModelError
from softleak.core.families import Family, Mixed, OneHot, Smoothed
from softleak.core.head import Head
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.io.formats import fingerprint
from softleak.io.weights import copy_weights
from softleak.labels.evidence.probes import evidence_of
from softleak.labels.evidence.relation import Relation
from softleak.paper import data, models
from softleak.paper.data.imageset import ImageSet
from softleak.paper.data.samples import Augmentation, Sample


@dataclass(frozen=True)
class Seeds:
    """The seeds of all random numbers in an experiment.

    A repetition adds its number to the seeds of samples and noise; the weights stay the same.

    Attributes:
        samples: the seed of the images and labels of the first repetition.
        weights: the seed of the initial weights of a network.
        noise: the seed of the noise that is added to shares in the first repetition.
    """

    samples: int = 1
    weights: int = 0
    noise: int = 2


SEEDS = Seeds()


@dataclass(frozen=True)
class AugmentationKind:
    """One way in which clients make their labels.

    Attributes:
        name: the name in tables and records.
        augmentation: the function that makes inputs and labels.
        family: the family of labels that the attacker assumes.
    """

    name: str
    augmentation: data.Augmentation
    family: Family


SMOOTHED = AugmentationKind("smoothed", data.Smoothing(), Smoothed())
MIXED = AugmentationKind("mixed", data.Mixup(), Mixed(2))
ONE_HOT = AugmentationKind("one-hot", data.Hard(), OneHot())


@dataclass(frozen=True)
class DataSet:
    """A data set of the paper.

    Attributes:
        file: the name of its data pack.
        title: the name of the data set in messages.
        images: the number of images that the paper has.
    """

    file: str
    title: str
    images: int

    @property
    def embedded(self) -> bool:
        """Whether some of its images come with the package."""
        return self == CIFAR10


CIFAR10 = DataSet("cifar10_test.npz", "CIFAR-10's test set", 10_000)
CIFAR100 = DataSet("cifar100_test.npz", "CIFAR-100's test set", 10_000)
FLOWERS17 = DataSet("flowers17_224.npz", "Flowers-17", 1360)
IMAGENET = DataSet("imagenet_sample500_224.npz", "ImageNet's validation set", 50_000)

_hash = cache(fingerprint)  # files are assumed not to change during a run


@dataclass(frozen=True)
class Shelf:
    """Folders of data packs and of trained weights, either of which may be missing.

    What was opened travels with the shelf, so that a worker on another machine needs no folders.

    Attributes:
        data: the folder of data packs.
        weights: the folder of trained weights.
        opened: the images that were read, by file.
        read: the weights that were read, by file.
    """

    data: Path | None = None
    weights: Path | None = None
    opened: dict[str, ImageSet] = field(default_factory=dict, compare=False)
    read: dict[str, Mapping[str, Tensor]] = field(default_factory=dict, compare=False)

    def images(self, source: DataSet) -> ImageSet:
        """Return the images of a data set.

        The embedded images stand in for CIFAR-10. ``DataError`` is raised if another pack is
        missing.
        """
        if source.file not in self.opened:
            path = self.path(source.file)
            if path is None and not source.embedded:
                raise DataError(
                    f"the data pack {source.file} is in no folder given; give one by --data"
                )
            self.opened[source.file] = data.load(path) if path else data.embedded()
        return self.opened[source.file]

    def tensors(self, name: str) -> Mapping[str, Tensor]:
        """Return the weights in a file on the shelf, or raise ``ModelError`` if it is missing."""
        if name not in self.read:
            path = self.path(name)
            if path is None:
                raise ModelError(
                    f"the weights {name} are in no folder given; give one by --data or --weights"
                )
            self.read[name] = tensor_files.load(path).tensors
        return self.read[name]

    def path(self, name: str | None) -> Path | None:
        """Return where a file is, or None if it is not on the shelf."""
        folders = [folder for folder in (self.data, self.weights) if folder is not None]
        found = [folder / name for folder in folders if name and (folder / name).is_file()]
        return found[0] if found else None

    def lacks(self, source: DataSet, weights: str = "") -> str:
        """Return the files that are needed and missing; empty if all are on the shelf.

        Args:
            source: the data set that is needed.
            weights: the file of weights that is needed, if any.
        """
        needed = [weights] if weights else []
        needed += [] if source.embedded else [source.file]
        return ", ".join(name for name in needed if self.path(name) is None)

    def hashes(self, names: Iterable[str]) -> dict[str, str]:
        """Return the SHA-256 of each file, or "embedded" if it comes with the package."""
        paths = {name: self.path(name) for name in names if name}
        return {name: _hash(path) if path else "embedded" for name, path in paths.items()}

    def shortfall(self, source: DataSet) -> str:
        """Return by how much the images are fewer than the paper's; empty if they are not."""
        held = len(self.images(source))
        if held >= source.images:
            return ""
        return f"{held} images of the {source.images} of {source.title}"


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


@dataclass(frozen=True, eq=False)
class AttackedNetwork:
    """A network with its data, and the subject that the attacks work on.

    Attributes:
        network: the description of the network and of its data.
        shelf: the data packs and weights that it was built from.
        subject: the built model with its head, and the evidence that its layers offer.
    """

    network: Network
    shelf: Shelf
    subject: Subject

    @classmethod
    def of(
        cls, network: Network, shelf: Shelf, *, evidence: bool = True, everything: bool = False,
        dtype: torch.dtype = torch.float32, training: bool = False,
    ) -> AttackedNetwork:  # fmt: skip
        """Build a network and look for evidence in its layers.

        Args:
            network: the network to build.
            shelf: the data packs and weights that it needs.
            evidence: whether layers before the head are probed for evidence.
            everything: whether shares hold the gradient of every parameter. By default they hold
                only what the recovery of labels reads.
            dtype: the precision of the weights, and so of the gradients.
            training: whether the model is in train mode instead of eval mode.
        """
        model = network.build(shelf).to(dtype).train(training)
        subject = Subject.of(model, network.input_shape, head=Head.of(model))
        if not evidence:
            subject = subject.given(evidence_of, ())
        head, relations = subject.head, subject.once(evidence_of)
        read = {head.weight_name, *(relation.parameter for relation in relations)}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(everything or name in read - {head.bias_name})
        return cls(network, shelf, subject)

    @property
    def model(self) -> nn.Module:
        """The model whose clients' shares are attacked."""
        return self.subject.model

    @property
    def head(self) -> Head:
        """Return the last linear layer of the model."""
        return self.subject.head

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The evidence that the layers before the head offer; empty if nobody looked for it."""
        return self.subject.once(evidence_of)

    def sample(self, kind: Augmentation, number: int, repeat: int = 0) -> Sample:
        """Return a sample that depends on nothing but its number and its repetition.

        Args:
            kind: the augmentation that makes the input and the label.
            number: the number of the sample within the repetition.
            repeat: the number of the repetition.
        """
        return self.network.sample(self.shelf, kind, number, SEEDS.samples + repeat)

    def share(self, sample: Sample) -> GradientShare:
        """Return the gradient that a client sends for this sample."""
        return capture(self.model, sample.x, sample.y)
