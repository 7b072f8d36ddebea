"""Image classifiers to audit, their initialisation, and the trained one that comes along.

The thin ResNets are those for CIFAR. The state-dict keys of the vision transformer (class token,
pre-norm, a bias-free head) are those of torchvision's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from types import MappingProxyType

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

from softleak.core.errors import ModelError
from softleak.io.weights import copy_state, load_weights

__all__ = [
    "MODELS", "ModelSpec", "alexnet", "fcn4", "kaiming_", "lenet", "load_weights", "mlp",
    "resnet18", "resnet18_cifar", "resnet20", "resnet32", "resnet50", "resnet50_cifar",
    "resnet56", "trained_lenet", "uniform_", "vgg", "vit",
]  # fmt: skip


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
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits


def alexnet(classes: int = 17, dropout: float = 0.5, head_bias: bool = False) -> PlainClassifier:
    """Build AlexNet; torchvision's own weights need head_bias=True and 1000 classes."""
    positive(classes=classes)
    probability("dropout", dropout)
    features = [
        nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, stride=2),
        nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, stride=2),
        nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, stride=2),
        nn.AdaptiveAvgPool2d(6),
    ]  # fmt: skip
    classifier = nn.Sequential(
        nn.Dropout(dropout), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(),
        nn.Dropout(dropout), nn.Linear(4096, 4096), nn.ReLU(),
        nn.Linear(4096, classes, bias=head_bias),
    )  # fmt: skip
    return PlainClassifier(features, classifier)


class MLP(PlainClassifier):
    """Hidden layers `features.{0,2,...}` and the head `classifier`."""

    def forward(self, x: Tensor) -> Tensor:
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


def lenet(
    classes: int = 10,
    in_channels: int = 3,
    image: int = 32,
    activation: Callable[[], nn.Module] = nn.Sigmoid,
) -> PlainClassifier:
    """Build the paper's LeNet for square images of so many pixels per side."""
    positive(classes=classes, in_channels=in_channels, image=image)
    layers: list[nn.Module] = []
    channels, side = in_channels, image
    for stride in (2, 2, 1):
        layers += [nn.Conv2d(channels, 12, 5, stride, padding=2), activation()]
        channels, side = 12, -(-side // stride)
    return PlainClassifier(layers, nn.Linear(channels * side * side, classes, bias=False))


_VGG_WIDTHS = (32, 64, 128)
_VGG_HIDDEN = 256


def vgg(classes: int = 10, image: int = 32, dropout: float = 0.5) -> PlainClassifier:
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
    return PlainClassifier(layers, classifier)


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


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Return a bias-free convolution that keeps the image size at stride 1."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class ResidualBlock(nn.Module):
    """Convolutions ``conv1``, ``conv2``, …, each with a BatchNorm, and a shortcut around all."""

    def __init__(self, *convolutions: nn.Conv2d, shortcut: nn.Module | None) -> None:
        super().__init__()
        for number, convolution in enumerate(convolutions, 1):
            self.add_module(f"conv{number}", convolution)
            self.add_module(f"bn{number}", nn.BatchNorm2d(convolution.out_channels))
        self.relu = nn.ReLU()
        self.downsample = shortcut
        self.depth, self.channels = len(convolutions), convolutions[-1].out_channels

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for number in range(1, self.depth + 1):
            out = self.get_submodule(f"bn{number}")(self.get_submodule(f"conv{number}")(out))
            out = out if number == self.depth else self.relu(out)
        shortcut = x if self.downsample is None else self.downsample(x)
        added: Tensor = self.relu(out + shortcut)
        return added


class Thinned(nn.Module):
    """Every other pixel, or all of them, and channels of zeros on either side.

    It is option A of He et al. 2016, "Deep Residual Learning for Image Recognition", section 4.2.
    """

    def __init__(self, stride: int, zeros: int) -> None:
        super().__init__()
        self.stride, self.zeros = stride, zeros

    def forward(self, x: Tensor) -> Tensor:
        thinned = x[:, :, :: self.stride, :: self.stride]
        return functional.pad(thinned, (0, 0, 0, 0, self.zeros, self.zeros))


Block = Callable[[int, int, int], ResidualBlock]  # from the channels, the width and the stride


def basic_block(inputs: int, width: int, stride: int) -> ResidualBlock:
    """Build two 3x3 convolutions and a shortcut."""
    first, second = _conv(inputs, width, 3, stride), _conv(width, width, 3)
    return ResidualBlock(first, second, shortcut=_projection(inputs, width, stride))


def bottleneck(inputs: int, width: int, stride: int) -> ResidualBlock:
    """Build a 1x1, a 3x3 (with the stride) and a 1x1 convolution, and a shortcut."""
    convolutions = (
        _conv(inputs, width, 1), _conv(width, width, 3, stride), _conv(width, 4 * width, 1)
    )  # fmt: skip
    return ResidualBlock(*convolutions, shortcut=_projection(inputs, 4 * width, stride))


def thin_block(inputs: int, width: int, stride: int) -> ResidualBlock:
    """Build two 3x3 convolutions and a shortcut without parameters."""
    first, second = _conv(inputs, width, 3, stride), _conv(width, width, 3)
    return ResidualBlock(first, second, shortcut=Thinned(stride, (width - inputs) // 2))


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """Return the 1x1 shortcut, or None where the identity fits."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """A stem, stages of blocks that each double the width, a global average and the head.

    A small one, for CIFAR, has a stem of 3x3 convolutions and no max-pool.
    """

    def __init__(
        self, block: Block, depths: tuple[int, ...], classes: int = 10, head_bias: bool = False,
        *, small: bool = False, width: int = 64, head: str = "fc",
    ) -> None:  # fmt: skip
        super().__init__()
        positive(classes=classes)
        self.conv1 = _conv(3, width, 3) if small else _conv(3, width, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        inputs, stages = width, len(depths)
        for number, depth in enumerate(depths):
            blocks: list[ResidualBlock] = []
            for place in range(depth):
                stride = 2 if number and not place else 1
                blocks.append(block(inputs, width * 2**number, stride))
                inputs = blocks[-1].channels
            self.add_module(f"layer{number + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.add_module(head, nn.Linear(inputs, classes, bias=head_bias))
        self.after = (*(f"layer{number + 1}" for number in range(stages)), "avgpool"), head

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        layers, head = self.after
        for layer in layers:
            x = self.get_submodule(layer)(x)
        logits: Tensor = self.get_submodule(head)(x.flatten(1))
        return logits


# In their ImageNet form (7x7 stem, max-pool), in their CIFAR form (3x3 stem, no max-pool), and the
# thin ones for CIFAR of 20, 32 and 56 layers, whose head `linear` has a bias.
resnet18 = partial(ResNet, basic_block, (2, 2, 2, 2))
resnet50 = partial(ResNet, bottleneck, (3, 4, 6, 3))
resnet18_cifar = partial(resnet18, small=True)
resnet50_cifar = partial(resnet50, small=True)
resnet20, resnet32, resnet56 = (
    partial(
        ResNet, thin_block, (depth,) * 3, head_bias=True, small=True, width=16, head="linear"
    )
    for depth in (3, 5, 9)
)  # fmt: skip


_MLP_RATIO = 4
_LAYER_NORM_EPS = 1e-6


class SelfAttention(nn.Module):
    """Multi-head self-attention written out in matrix products.

    Image reconstruction differentiates a gradient once more, and the fused attention kernels of
    PyTorch have no second derivative.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        self._heads = heads
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        qkv = functional.linear(x, self.in_proj_weight, self.in_proj_bias)
        qkv = qkv.reshape(n, tokens, 3, self._heads, width // self._heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / (width // self._heads) ** 0.5).softmax(dim=-1)
        out: Tensor = self.out_proj((weights @ v).transpose(1, 2).reshape(n, tokens, width))
        return out


class EncoderBlock(nn.Module):
    """Compute x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=_LAYER_NORM_EPS)
        self.self_attention = SelfAttention(width, heads)
        self.dropout = nn.Dropout(dropout)
        self.ln_2 = nn.LayerNorm(width, eps=_LAYER_NORM_EPS)
        self.mlp = nn.Sequential(
            nn.Linear(width, _MLP_RATIO * width), nn.GELU(), nn.Dropout(dropout),
            nn.Linear(_MLP_RATIO * width, width), nn.Dropout(dropout),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.self_attention(self.ln_1(x)))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class Encoder(nn.Module):
    """The position embedding, the blocks and the last norm."""

    def __init__(self, tokens: int, width: int, depth: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, width).normal_(std=0.02))
        self.layers = nn.Sequential(
            OrderedDict(
                (f"encoder_layer_{i}", EncoderBlock(width, heads, dropout)) for i in range(depth)
            )
        )
        self.ln = nn.LayerNorm(width, eps=_LAYER_NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.ln(self.layers(x + self.pos_embedding))
        return out


class ViT(nn.Module):
    """Patches, a class token, an encoder, and the head `heads.head` on the class token."""

    def __init__(self, classes: int, patch: int, width: int, encoder: Encoder) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.conv_proj = nn.Conv2d(3, width, patch, stride=patch)
        self.encoder = encoder
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(width, classes, bias=False)))

    def forward(self, x: Tensor) -> Tensor:
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches], dim=1)
        logits: Tensor = self.heads(self.encoder(tokens)[:, 0])
        return logits


def vit(
    classes: int = 10, image: int = 32, patch: int = 4, width: int = 96, depth: int = 4,
    heads: int = 4, dropout: float = 0.0,
) -> ViT:  # fmt: skip
    """Build a vision transformer for square images of so many pixels per side, cut in patches."""
    positive(classes=classes, depth=depth)
    divisible("image", image, "patch", patch)
    divisible("width", width, "heads", heads)
    probability("dropout", dropout)
    tokens = (image // patch) ** 2 + 1
    return ViT(classes, patch, width, Encoder(tokens, width, depth, heads, dropout))


@dataclass(frozen=True)
class ModelSpec:
    """A model factory that is called through this, and the image shape (C, H, W) it is for."""

    factory: Callable[..., nn.Module]
    input_shape: tuple[int, int, int] = (3, 32, 32)

    def __call__(self, *args: object, **options: object) -> nn.Module:
        return self.factory(*args, **options)


MODELS: Mapping[str, ModelSpec] = MappingProxyType(
    {
        "lenet": ModelSpec(lenet),
        "alexnet": ModelSpec(alexnet, (3, 224, 224)),
        "resnet18": ModelSpec(resnet18),
        "resnet50": ModelSpec(resnet50, (3, 224, 224)),
        "resnet18_cifar": ModelSpec(resnet18_cifar),
        "resnet50_cifar": ModelSpec(resnet50_cifar),
        "resnet20": ModelSpec(resnet20),
        "resnet32": ModelSpec(resnet32),
        "resnet56": ModelSpec(resnet56),
        "fcn4": ModelSpec(fcn4, (3, 64, 64)),
        "mlp": ModelSpec(partial(mlp, 3 * 32 * 32)),
        "vgg": ModelSpec(vgg),
        "vit": ModelSpec(vit),
    }
)


def trained_lenet() -> PlainClassifier:
    """Return the sigmoid LeNet trained on CIFAR-10 (inputs by CIFAR10_NORM), in eval mode."""
    model, name = lenet(), "lenet_cifar10.safetensors"
    data = resources.files("softleak.paper").joinpath("weights", name).read_bytes()
    copy_state(model, safetensors.torch.load(data), name)
    return model.eval()
