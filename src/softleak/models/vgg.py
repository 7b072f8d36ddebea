"""This module builds a small VGG: three convolutions, a biased hidden layer, a bias-free head."""

from __future__ import annotations

from torch import Tensor, nn

from softleak.models.checks import divisible, positive, probability

_VGG_WIDTHS = (32, 64, 128)
_VGG_HIDDEN = 256


class VGG(nn.Module):
    """This has convolutions `features.{0,3,6}` and linear layers `classifier.{0,3}`."""

    def __init__(self, classes: int, image: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in _VGG_WIDTHS:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            channels = width
        side = image // 2 ** len(_VGG_WIDTHS)
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(channels * side * side, _VGG_HIDDEN),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(_VGG_HIDDEN, classes, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, classes) of images (N, 3, H, W)."""
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits


def vgg(classes: int = 10, image: int = 32, dropout: float = 0.5) -> VGG:
    """Build the small VGG for square images.

    Args:
        classes: the number of classes.
        image: the pixels per side, a multiple of 8.
        dropout: the probability with which dropout zeroes an entry in train mode.
    """
    positive("classes", classes)
    divisible("image", image, "the total pooling", 2 ** len(_VGG_WIDTHS))
    probability("dropout", dropout)
    return VGG(classes, image, dropout)
