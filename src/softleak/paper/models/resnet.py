"""Build ResNet-18 and -50, and the thin ResNet-20, -32 and -56 for CIFAR."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from softleak.paper.models.networks import positive

_RESNET_WIDTHS = (64, 128, 256, 512)
_RESNET_STRIDES = (1, 2, 2, 2)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Return a bias-free convolution that keeps the image size at stride 1."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """Return the 1x1 shortcut, or None where the identity fits."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.conv2 = _conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _projection(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, width, H / stride, W / stride) of (N, inputs, H, W)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        residual = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out: Tensor = self.relu(residual + shortcut)
        return out


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 (with the stride) and a 1x1 convolution, and a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.downsample = _projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, 4 width, H / stride, W / stride) of (N, inputs, H, W)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        narrow = self.relu(self.bn1(self.conv1(x)))
        narrow = self.relu(self.bn2(self.conv2(narrow)))
        out: Tensor = self.relu(self.bn3(self.conv3(narrow)) + shortcut)
        return out


class ThinBlock(nn.Module):
    """Two 3x3 convolutions and a parameter-free shortcut.

    A shortcut that changes size drops every other pixel and fills the new channels with zeros
    (option A of He et al. 2016, "Deep Residual Learning for Image Recognition", section 4.2).
    """

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self._stride = stride
        self._zeros = (width - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, width, H / stride, W / stride) of (N, inputs, H, W)."""
        thinned = x[:, :, :: self._stride, :: self._stride]
        shortcut = functional.pad(thinned, (0, 0, 0, 0, self._zeros, self._zeros))
        residual = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(residual + shortcut)


Block = type[BasicBlock] | type[Bottleneck] | type[ThinBlock]


def _stage(block: Block, inputs: int, width: int, depth: int, stride: int) -> nn.Sequential:
    """Return `depth` blocks, the first of which changes width and size."""
    rest = (block(width * block.expansion, width, 1) for _ in range(depth - 1))
    return nn.Sequential(block(inputs, width, stride), *rest)


class ResNet(nn.Module):
    """A stem, four stages of blocks, a global average and the head `fc`."""

    def __init__(
        self, block: Block, depths: tuple[int, ...], classes: int, small: bool, head_bias: bool
    ) -> None:
        super().__init__()
        positive(classes=classes)
        self.conv1 = _conv(3, 64, 3) if small else _conv(3, 64, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        inputs = 64
        stages: list[nn.Sequential] = []
        for width, depth, stride in zip(_RESNET_WIDTHS, depths, _RESNET_STRIDES, strict=True):
            stages.append(_stage(block, inputs, width, depth, stride))
            inputs = width * block.expansion
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes, bias=head_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, classes) of images (N, 3, H, W)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


_DEPTHS_18, _DEPTHS_50 = (2, 2, 2, 2), (3, 4, 6, 3)


def resnet18(classes: int = 10, head_bias: bool = False) -> ResNet:
    """Build ResNet-18 in its ImageNet form (7x7 stem, max-pool)."""
    return ResNet(BasicBlock, _DEPTHS_18, classes, small=False, head_bias=head_bias)


def resnet50(classes: int = 10, head_bias: bool = False) -> ResNet:
    """Build ResNet-50 in its ImageNet form (7x7 stem, max-pool)."""
    return ResNet(Bottleneck, _DEPTHS_50, classes, small=False, head_bias=head_bias)


def resnet18_cifar(classes: int = 10, head_bias: bool = False) -> ResNet:
    """Build ResNet-18 in its CIFAR form (3x3 stem, no max-pool)."""
    return ResNet(BasicBlock, _DEPTHS_18, classes, small=True, head_bias=head_bias)


def resnet50_cifar(classes: int = 10, head_bias: bool = False) -> ResNet:
    """Build ResNet-50 in its CIFAR form (3x3 stem, no max-pool)."""
    return ResNet(Bottleneck, _DEPTHS_50, classes, small=True, head_bias=head_bias)


class ThinResNet(nn.Module):
    """Three stages of `depth` blocks, 6 * depth + 2 layers in all; the head `linear` has a bias."""

    def __init__(self, depth: int, classes: int) -> None:
        super().__init__()
        positive(classes=classes)
        self.conv1 = _conv(3, 16, 3)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(ThinBlock, 16, 16, depth, stride=1)
        self.layer2 = _stage(ThinBlock, 16, 32, depth, stride=2)
        self.layer3 = _stage(ThinBlock, 32, 64, depth, stride=2)
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (N, classes) of images (N, 3, H, W)."""
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(x.mean(dim=(2, 3)))
        return logits


def resnet20(classes: int = 10) -> ThinResNet:
    """Build ResNet-20 for CIFAR."""
    return ThinResNet(3, classes)


def resnet32(classes: int = 10) -> ThinResNet:
    """Build ResNet-32 for CIFAR."""
    return ThinResNet(5, classes)


def resnet56(classes: int = 10) -> ThinResNet:
    """Build ResNet-56 for CIFAR."""
    return ThinResNet(9, classes)
