"""This module builds LeNet as in the paper: three 5x5 convolutions and a bias-free head."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from softleak.models.checks import positive

_LENET_CHANNELS = 12
_LENET_STRIDES = (2, 2, 1)


class LeNet(nn.Module):
    """This has convolutions `features.{0,2,4}` and the head `classifier`."""

    def __init__(
        self, classes: int, in_channels: int, image: int, activation: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels, side = in_channels, image
        for stride in _LENET_STRIDES:
            layers += [nn.Conv2d(channels, _LENET_CHANNELS, 5, stride, padding=2), activation()]
            channels, side = _LENET_CHANNELS, -(-side // stride)
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels * side * side, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, classes) of images (N, C, H, W)."""
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits


def lenet(
    classes: int = 10,
    in_channels: int = 3,
    image: int = 32,
    activation: Callable[[], nn.Module] = nn.Sigmoid,
) -> LeNet:
    """Build the paper's LeNet for square images.

    Args:
        classes: the number of classes.
        in_channels: the channels of an image.
        image: the pixels per side.
        activation: makes the activation after each convolution.
    """
    positive("classes", classes)
    positive("in_channels", in_channels)
    positive("image", image)
    return LeNet(classes, in_channels, image, activation)
