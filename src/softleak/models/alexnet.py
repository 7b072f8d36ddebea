"""This module builds AlexNet in torchvision's layout, with a bias-free head by default."""

from __future__ import annotations

from torch import Tensor, nn

from softleak.models.checks import positive, probability


class AlexNet(nn.Module):
    """This has convolutions `features.{0,3,6,8,10}` and linear layers `classifier.{1,4,6}`."""

    def __init__(self, classes: int, dropout: float, head_bias: bool) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, classes, bias=head_bias),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, classes) of images (N, 3, 224, 224)."""
        logits: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return logits


def alexnet(classes: int = 17, dropout: float = 0.5, head_bias: bool = False) -> AlexNet:
    """Build AlexNet; torchvision's own weights need head_bias=True and 1000 classes.

    Args:
        classes: the number of classes.
        dropout: the probability with which dropout zeroes an entry in train mode.
        head_bias: whether the last layer has a bias.
    """
    positive("classes", classes)
    probability("dropout", dropout)
    return AlexNet(classes, dropout, head_bias)
