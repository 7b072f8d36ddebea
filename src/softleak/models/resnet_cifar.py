"""This module builds ResNet-20, -32 and -56, whose shortcuts have no parameters.

A shortcut that changes size drops every other pixel and fills the new channels with zeros (option A
of He et al. 2016, "Deep Residual Learning for Image Recognition", section 4.2). The head `linear`
has a bias.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from softleak.models.checks import positive

_THIN_WIDTHS = (16, 32, 64)


class ThinBlock(nn.Module):
    """This has two 3x3 convolutions and a parameter-free shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self._stride = stride
        self._zeros = (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, outputs, H / stride, W / stride) of (N, inputs, H, W)."""
        thinned = x[:, :, :: self._stride, :: self._stride]
        shortcut = functional.pad(thinned, (0, 0, 0, 0, self._zeros, self._zeros))
        residual = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(residual + shortcut)


def _stage(inputs: int, outputs: int, depth: int, stride: int) -> nn.Sequential:
    """Return `depth` blocks, the first of which changes width and size."""
    first = ThinBlock(inputs, outputs, stride)
    return nn.Sequential(first, *(ThinBlock(outputs, outputs, 1) for _ in range(depth - 1)))


class ThinResNet(nn.Module):
    """This has three stages of `depth` blocks, 6 * depth + 2 layers in all."""

    def __init__(self, depth: int, classes: int) -> None:
        super().__init__()
        narrow, middle, wide = _THIN_WIDTHS
        self.conv1 = nn.Conv2d(3, narrow, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(narrow)
        self.layer1 = _stage(narrow, narrow, depth, stride=1)
        self.layer2 = _stage(narrow, middle, depth, stride=2)
        self.layer3 = _stage(middle, wide, depth, stride=2)
        self.linear = nn.Linear(wide, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, classes) of images (N, 3, H, W)."""
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(x.mean(dim=(2, 3)))
        return logits


def resnet20(classes: int = 10) -> ThinResNet:
    """Build ResNet-20 for CIFAR."""
    positive("classes", classes)
    return ThinResNet(3, classes)


def resnet32(classes: int = 10) -> ThinResNet:
    """Build ResNet-32 for CIFAR."""
    positive("classes", classes)
    return ThinResNet(5, classes)


def resnet56(classes: int = 10) -> ThinResNet:
    """Build ResNet-56 for CIFAR."""
    positive("classes", classes)
    return ThinResNet(9, classes)
