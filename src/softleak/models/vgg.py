"""A small VGG: three convolution blocks, one biased hidden layer with dropout, bias-free head."""

from __future__ import annotations

from torch import Tensor, nn

from softleak.models.checks import divisible, positive, probability

_WIDTHS = (32, 64, 128)
_HIDDEN = 256


class VGG(nn.Module):
    """Convolutions `features.{0,3,6}`, linear layers `classifier.{0,3}`."""

    def __init__(self, classes: int, image: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in _WIDTHS:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            channels = width
        side = image // 2 ** len(_WIDTHS)
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(channels * side * side, _HIDDEN),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(_HIDDEN, classes, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, 3, H, W) to logits (N, classes)."""
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits


def vgg(classes: int = 10, image: int = 32, dropout: float = 0.5) -> VGG:
    """Build the small VGG for square images with `image` pixels a side."""
    positive("classes", classes)
    divisible("image", image, "the total pooling", 2 ** len(_WIDTHS))
    probability("dropout", dropout)
    return VGG(classes, image, dropout)
