"""Build the plain classifiers, and initialise untrained networks in other ways than PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from softleak.core.errors import ModelError


def positive(**sizes: int) -> None:
    """Raise unless every size is at least 1."""
    for name, value in sizes.items():
        if value < 1:
            raise ModelError(f"{name} must be 1 or more, got {value}.")


def probability(name: str, value: float) -> None:
    """Raise unless value lies in [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise ModelError(f"{name} must lie in [0, 1), got {value}.")


def divisible(name: str, value: int, by_name: str, by: int) -> None:
    """Raise unless value is a positive multiple of by."""
    positive(**{name: value, by_name: by})
    if value % by:
        raise ModelError(f"{name} must be a multiple of {by_name}, got {value} and {by}.")


class PlainClassifier(nn.Module):
    """The layers `features`, whose output is flattened, and the layers `classifier`."""

    def __init__(self, features: Sequence[nn.Module], classifier: nn.Module) -> None:
        super().__init__()
        self.features = nn.Sequential(*features)
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, classes) of images (N, C, H, W)."""
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits


class AlexNet(PlainClassifier):
    """Convolutions `features.{0,3,6,8,10}` and linear layers `classifier.{1,4,6}`."""

    def __init__(self, features: Sequence[nn.Module], classifier: nn.Module) -> None:
        super().__init__(features, classifier)
        self.avgpool = nn.AdaptiveAvgPool2d(6)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, classes) of images (N, 3, 224, 224)."""
        logits: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return logits


def alexnet(classes: int = 17, dropout: float = 0.5, head_bias: bool = False) -> AlexNet:
    """Build AlexNet; torchvision's own weights need head_bias=True and 1000 classes."""
    positive(classes=classes)
    probability("dropout", dropout)
    features = [
        nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, stride=2),
        nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, stride=2),
        nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, stride=2),
    ]  # fmt: skip
    classifier = nn.Sequential(
        nn.Dropout(dropout), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(),
        nn.Dropout(dropout), nn.Linear(4096, 4096), nn.ReLU(),
        nn.Linear(4096, classes, bias=head_bias),
    )  # fmt: skip
    return AlexNet(features, classifier)


class MLP(PlainClassifier):
    """Hidden layers `features.{0,2,...}` and the head `classifier`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, classes) of inputs (N, ...), flattened to (N, features)."""
        logits: Tensor = self.classifier(self.features(x.flatten(1)))
        return logits


def mlp(
    features: int, hidden: Sequence[int] = (256, 128), classes: int = 10,
    activation: Callable[[], nn.Module] = nn.ReLU, bias: bool = True,
) -> MLP:  # fmt: skip
    """Build a fully connected network of these hidden widths; the head never has a bias."""
    positive(features=features, classes=classes)
    layers: list[nn.Module] = []
    for width in hidden:
        positive(**{"every width in hidden": width})
        layers += [nn.Linear(features, width, bias=bias), activation()]
        features = width
    return MLP(layers, nn.Linear(features, classes, bias=False))


def fcn4(
    classes: int = 17,
    image: int = 64,
    bias: bool = False,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> MLP:
    """Build the paper's FCN-4 for square RGB images; the head never has a bias."""
    positive(image=image)
    return mlp(3 * image * image, (4096, 1024, 256), classes, activation, bias)


class LeNet(PlainClassifier):
    """Convolutions `features.{0,2,4}` and the head `classifier`."""


def lenet(
    classes: int = 10,
    in_channels: int = 3,
    image: int = 32,
    activation: Callable[[], nn.Module] = nn.Sigmoid,
) -> LeNet:
    """Build the paper's LeNet for square images of so many pixels per side."""
    positive(classes=classes, in_channels=in_channels, image=image)
    layers: list[nn.Module] = []
    channels, side = in_channels, image
    for stride in (2, 2, 1):
        layers += [nn.Conv2d(channels, 12, 5, stride, padding=2), activation()]
        channels, side = 12, -(-side // stride)
    return LeNet(layers, nn.Linear(channels * side * side, classes, bias=False))


_VGG_WIDTHS = (32, 64, 128)
_VGG_HIDDEN = 256


class VGG(PlainClassifier):
    """Convolutions `features.{0,3,6}` and linear layers `classifier.{0,3}`."""


def vgg(classes: int = 10, image: int = 32, dropout: float = 0.5) -> VGG:
    """Build the small VGG for square images, whose pixels per side are a multiple of 8."""
    positive(classes=classes)
    divisible("image", image, "the total pooling", 2 ** len(_VGG_WIDTHS))
    probability("dropout", dropout)
    layers: list[nn.Module] = []
    channels, side = 3, image // 2 ** len(_VGG_WIDTHS)
    for width in _VGG_WIDTHS:
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    classifier = nn.Sequential(
        nn.Linear(channels * side * side, _VGG_HIDDEN), nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(_VGG_HIDDEN, classes, bias=False),
    )  # fmt: skip
    return VGG(layers, classifier)


def uniform_(
    model: nn.Module, bound: float = 0.5, generator: torch.Generator | None = None
) -> nn.Module:
    """Fill every parameter from U(-bound, bound), in place: the paper's untrained ones."""
    if not bound > 0:
        raise ModelError(f"bound must be positive, got {bound}.")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return model


def kaiming_(model: nn.Module, generator: torch.Generator | None = None) -> nn.Module:
    """Draw every convolution as torchvision's ResNets do: Kaiming normal by fan-out, in place.

    The paper's untrained ResNet-18 has these weights if torchvision made it. Table 2 here has
    PyTorch's own.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(
                module.weight, mode="fan_out", nonlinearity="relu", generator=generator
            )
    return model
