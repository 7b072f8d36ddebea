"""A network of the paper, prepared so that many shares of its clients can be attacked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
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
from softleak.inversion.chain import Chain
from softleak.io.formats import fingerprint
from softleak.io.weights import copy_weights
from softleak.labels.evidence.probes import evidence_of
from softleak.labels.evidence.relation import Relation
from softleak.paper import data, models
from softleak.paper.data import Augmentation, ImageSet, Sample

# Seeds: of initial weights, and of the first repetition's samples and noise; a repetition adds its
# number to these.
WEIGHT_SEED, SAMPLE_SEED, NOISE_SEED = 0, 1, 2


@dataclass(frozen=True)
class AugmentationKind:
    """One way in which clients make their labels."""

    name: str  # the name in tables and records
    augmentation: data.Augmentation  # the function that makes inputs and labels
    family: Family  # the family of labels that the attacker assumes

    def drawn(self, target: AttackedNetwork, numbers: Sequence[int], repeat: int) -> list[Sample]:
        """Return samples that depend on their number and repetition alone."""
        return [target.sample(self.augmentation, number, repeat) for number in numbers]


SMOOTHED = AugmentationKind("smoothed", data.Smoothing(), Smoothed())
MIXED = AugmentationKind("mixed", data.Mixup(), Mixed(2))
ONE_HOT = AugmentationKind("one-hot", data.Hard(), OneHot())


@dataclass(frozen=True)
class DataSet:
    """A data set of the paper."""

    file: str  # the name of its data pack
    title: str  # the name of the data set in messages
    images: int  # the number of images that the paper has

    @property
    def embedded(self) -> bool:
        return self == CIFAR10


CIFAR10 = DataSet("cifar10_test.npz", "CIFAR-10's test set", 10_000)
CIFAR100 = DataSet("cifar100_test.npz", "CIFAR-100's test set", 10_000)
FLOWERS17 = DataSet("flowers17_224.npz", "Flowers-17", 1360)
IMAGENET = DataSet("imagenet_sample500_224.npz", "ImageNet's validation set", 50_000)

_hash = cache(fingerprint)  # files are assumed not to change during a run


@dataclass(frozen=True)
class Shelf:
    """Folders of data packs and trained weights, if any; what was opened travels with the shelf."""

    data: Path | None = None  # the folder of data packs
    weights: Path | None = None  # the folder of trained weights
    # The images and the weights that were read, by file.
    opened: dict[str, ImageSet] = field(default_factory=dict, compare=False)
    read: dict[str, Mapping[str, Tensor]] = field(default_factory=dict, compare=False)

    def images(self, source: DataSet) -> ImageSet:
        """Return the images of a data set; the embedded ones stand in for CIFAR-10 only."""
        if source.file not in self.opened:
            path = self.path(source.file)
            if path is None and not source.embedded:
                raise DataError(
                    f"the data pack {source.file} is in no folder given; give one by --data"
                )
            self.opened[source.file] = data.load(path) if path else data.embedded()
        return self.opened[source.file]

    def tensors(self, name: str) -> Mapping[str, Tensor]:
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
        places = [folder / name for folder in (self.data, self.weights) if folder and name]
        return next((place for place in places if place.is_file()), None)

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


@dataclass(frozen=True)
class Network:
    """A model as it is measured."""

    make: Callable[[], nn.Module]  # the function that builds the model with random weights
    weights: str = ""  # the file of trained weights on the shelf; empty for an untrained model
    initialise: Callable[[nn.Module], nn.Module] | None = None  # replaces PyTorch's own weights
    source: DataSet = CIFAR10  # the data set of its inputs
    size: int = 32  # the height and width of an input in pixels
    normalisation: data.Normalisation = data.CIFAR10_NORM  # turns pixels into inputs

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Return the shape (C, H, W) of one input."""
        return 3, self.size, self.size

    def lacking(self, shelf: Shelf) -> str:
        """Return the files that are needed and not on the shelf; empty if all are there."""
        needed = (self.weights, "" if self.source.embedded else self.source.file)
        return ", ".join(name for name in needed if name and shelf.path(name) is None)

    def build(self, shelf: Shelf) -> nn.Module:
        """Return the model in eval mode, with the same weights every time."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(WEIGHT_SEED)
            model = self.make()
            model = model if self.initialise is None else self.initialise(model)
        if self.weights:
            copy_weights(model, shelf.tensors(self.weights), self.weights)
        return model.eval()

    def sample(self, shelf: Shelf, kind: data.Augmentation, number: int, seed: int) -> data.Sample:
        """Return sample ``number`` of the stream of a seed, resized to this network's input."""
        images = shelf.images(self.source)
        size = None if images.shape == self.input_shape else self.size
        return data.nth_sample(images, kind, number, seed, self.normalisation, size)


def _resnet50(classes: int, source: DataSet, size: int) -> Network:
    """Return the ResNet50 of Table 1, whose weights are drawn uniformly."""
    make = partial(models.resnet50, classes=classes)
    return Network(make, initialise=models.uniform_, source=source, size=size)


_on_flowers = partial(Network, source=FLOWERS17, size=224)
# Others have trained these until the loss was almost zero.
_converged = partial(Network, normalisation=data.IMAGENET_NORM)

NETWORKS: Mapping[str, Network] = {
    "lenet": Network(models.lenet, initialise=models.uniform_),
    "lenet default": Network(models.lenet),
    "lenet trained": Network(models.trained_lenet),
    "resnet18": Network(models.resnet18),
    "resnet18 kaiming": Network(models.resnet18, initialise=models.kaiming_),
    "resnet18 trained": Network(models.resnet18, "resnet18.safetensors"),
    "resnet18_cifar": Network(models.resnet18_cifar),
    "resnet18_cifar trained": Network(models.resnet18_cifar, "resnet18_cifar.safetensors"),
    "resnet20 converged": _converged(models.resnet20, "cifar10_resnet20.npz"),
    "resnet56 converged": _converged(models.resnet56, "cifar10_resnet56.npz"),
    "alexnet": _on_flowers(models.alexnet, initialise=models.uniform_),
    "alexnet trained": _on_flowers(models.alexnet, "alexnet_flowers.safetensors"),
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
    "resnet50 at 224": Network(models.resnet50, size=224),
    "resnet50 at 224, uniform": _resnet50(10, CIFAR10, 224),
    **{
        f"mlp {kind.__name__}": Network(partial(models.mlp, 3 * 32 * 32, activation=kind))
        for kind in (nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh)
    },
}


@dataclass(frozen=True, eq=False)
class AttackedNetwork:
    """A network with its data, and the subject that the attacks work on."""

    network: Network  # the description of the network and of its data
    shelf: Shelf  # the data packs and weights that it was built from
    subject: Subject  # the built model with its head, and the evidence that its layers offer

    @classmethod
    def of(
        cls, network: Network, shelf: Shelf, *, evidence: bool = True, everything: bool = False,
        dtype: torch.dtype = torch.float32, training: bool = False,
    ) -> AttackedNetwork:  # fmt: skip
        """Build a network in eval or train mode, and look for evidence in its layers or not.

        Shares hold what the recovery of labels reads, or the gradient of every parameter.
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
        return self.subject.model

    @property
    def head(self) -> Head:
        return self.subject.head

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The evidence that the layers before the head offer; empty if it was not looked for."""
        return self.subject.once(evidence_of)

    @cached_property
    def chain(self) -> Chain:
        """The layers before the head, if these are a plain sequence; else raises ``ModelError``."""
        return Chain.of(self.model, self.head, self.network.input_shape)

    @cached_property
    def mean_image(self) -> Tensor:
        """The mean image (C, H, W) of the data set, which is a guess without any share."""
        mean = self.shelf.images(self.network.source).mean()
        return data.resize(mean[None], self.network.size)[0]

    def sample(self, kind: Augmentation, number: int, repeat: int = 0) -> Sample:
        """Return a sample that depends on nothing but its number and its repetition."""
        return self.network.sample(self.shelf, kind, number, SAMPLE_SEED + repeat)

    def share(self, sample: Sample) -> GradientShare:
        """Return the gradient that a client sends for this sample."""
        return capture(self.model, sample.x, sample.y)

    def batch(
        self, kind: Augmentation, size: int, number: int, repeat: int
    ) -> tuple[list[Sample], GradientShare]:
        """Return the samples of a batch, and the gradient that a client sends for all of them."""
        drawn = [self.sample(kind, n, repeat) for n in range(number * size, (number + 1) * size)]
        x, y = torch.stack([one.x for one in drawn]), torch.stack([one.y for one in drawn])
        return drawn, capture(self.model, x.float(), y.float())
