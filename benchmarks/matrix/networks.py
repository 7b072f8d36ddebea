"""The rows: networks of every kind that the audit treats differently, with and without head bias.

Chains are inverted layer by layer. Residual networks, networks that pool maxima, transformers and
recurrent networks are not.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from benchmarks.adversary.stranger import IMAGE, Stranger
from benchmarks.adversary.zoo.hugging_face import HUGGING_FACE
from benchmarks.adversary.zoo.sequences import SEQUENCES
from softleak.paper import models

CLASSES = 10


def perceptron() -> nn.Module:
    """Return an MLP whose head has a bias."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(),
        nn.Linear(64, CLASSES),
    )  # fmt: skip


def sigmoid_cnn() -> nn.Module:
    """Return a sequence of convolutions with sigmoids and a head with a bias."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(12, 12, 5, 2, 2), nn.Sigmoid(),
        nn.Flatten(), nn.Linear(768, CLASSES),
    )  # fmt: skip


class SmallAlexNet(nn.Module):
    """A network with max-pooling, two hidden layers with dropout, and a head with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 24, 5, 1, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(24, 32, 5, 1, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(288, 96), nn.ReLU(), nn.Dropout(), nn.Linear(96, 64), nn.ReLU(),
            nn.Linear(64, CLASSES),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, 10) of images (N, 3, 32, 32)."""
        z: Tensor = self.classifier(self.features(x).flatten(1))
        return z


def _known(name: str, group: str, title: str) -> Stranger:
    """Return one of the adversary's networks under a title and group of this table."""
    found = next(one for one in (*HUGGING_FACE, *SEQUENCES) if one.name == name)
    return Stranger(title, group, found.build, found.shape, found.trained)


NETWORKS: tuple[Stranger, ...] = (
    Stranger("MLP", "chain", perceptron, trained=40),
    Stranger("MLP, no head bias", "chain", partial(models.mlp, 3072, (128, 64))),
    Stranger("LeNet, trained, no head bias", "chain", models.trained_lenet),
    Stranger("LeNet with tanh, no head bias", "chain", partial(models.lenet, activation=nn.Tanh)),
    Stranger("sigmoid CNN", "chain", sigmoid_cnn),
    Stranger("ResNet18 for CIFAR", "residual", models.resnet18_cifar),
    _known("ResNet, trained", "residual", "Hugging Face ResNet, trained"),
    Stranger("VGG, no head bias", "max-pool", models.vgg),
    Stranger("small AlexNet", "max-pool", SmallAlexNet, trained=40),
    Stranger("ViT, no head bias", "transformer", models.vit, IMAGE),
    _known("ViT, trained", "transformer", "Hugging Face ViT, trained"),
    _known("TransformerEncoderLayer", "transformer", "nn.TransformerEncoder"),
    _known("GRU", "recurrent", "GRU"),
    _known("GRU, no head bias, trained", "recurrent", "GRU, trained, no head bias"),
)
