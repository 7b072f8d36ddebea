"""LeNet as used in the paper: three 5x5 convolutions and a bias-free head."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from softleak.models.checks import positive

_CHANNELS = 12
_STRIDES = (2, 2, 1)


class LeNet(nn.Module):
    """Convolutions `features.{0,2,4}`, head `classifier`."""

    def __init__(
        self, classes: int, in_channels: int, image: int, activation: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels, side = in_channels, image
        for stride in _STRIDES:
            layers += [nn.Conv2d(channels, _CHANNELS, 5, stride, padding=2), activation()]
            channels, side = _CHANNELS, -(-side // stride)
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels * side * side, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, C, H, W) to logits (N, classes)."""
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits


def lenet(
    classes: int = 10,
    in_channels: int = 3,
    image: int = 32,
    activation: Callable[[], nn.Module] = nn.Sigmoid,
) -> LeNet:
    """Build the paper's LeNet for square images with `image` pixels a side."""
    positive("classes", classes)
    positive("in_channels", in_channels)
    positive("image", image)
    return LeNet(classes, in_channels, image, activation)
