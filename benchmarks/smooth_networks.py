"""Small smooth networks for images: residual, ConvNeXt-like, MLP-Mixer, Swin-like, LeNet."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.paper import data, models

CLASSES = 10
CALIBRATION = 64  # images whose statistics BatchNorm keeps


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut, each with BatchNorm."""

    def __init__(self, width: int, out: int, stride: int, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.act = act()
        short = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.short = short if stride > 1 or width != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.second(self.act(self.norm1(self.first(x)))))
        out: Tensor = self.act(inner + self.short(x))
        return out


class ResidualNet(nn.Module):
    """A stem, some residual blocks, average pooling and a head."""

    def __init__(
        self, act: Callable[[], nn.Module], blocks: tuple[tuple[int, int], ...], width: int = 8
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), act()
        )
        layers, last = [], width
        for times, stride in blocks:
            layers.append(ResidualBlock(last, width * times, stride, act))
            last = width * times
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(last, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.stem(x)).mean((2, 3)))
        return logits


class PlainBlock(nn.Module):
    """Two convolutions beside a shortcut, without normalisation."""

    def __init__(self, width: int, out: int, stride: int, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, out, 3, stride, 1)
        self.second = nn.Conv2d(out, out, 3, 1, 1)
        self.act = act()
        change = stride > 1 or width != out
        self.short = nn.Conv2d(width, out, 1, stride) if change else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.second(self.act(self.first(x))) + self.short(x))
        return out


class PlainResidual(nn.Module):
    """A stem that halves the image, residual blocks without BatchNorm, and a head on all places.

    Weights of convolutions are ``gain`` times those of PyTorch, so that without normalisation the
    signal neither vanishes nor grows.
    """

    def __init__(
        self, act: Callable[[], nn.Module], blocks: tuple[tuple[int, int], ...], size: int,
        width: int = 12, gain: float = 2.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.stem, side = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), act()), size // 2
        layers, last = [], width
        for times, stride in blocks:
            layers.append(PlainBlock(last, width * times, stride, act))
            last, side = width * times, side // stride
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(last * side**2, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.data.mul_(gain)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.stem(x)).flatten(1))
        return logits


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return out


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution and two pointwise ones, with a scale per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = ChannelNorm(width)
        self.wide = nn.Conv2d(width, 4 * width, 1)
        self.narrow = nn.Conv2d(4 * width, width, 1)
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.narrow(F.gelu(self.wide(self.norm(self.depthwise(x)))))
        out: Tensor = x + self.scale * inner
        return out


class ConvNeXt(nn.Module):
    """Patches of two pixels, two stages with a reduction between them."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 2, 2), ChannelNorm(width))
        self.first = nn.Sequential(ConvNeXtBlock(width), ConvNeXtBlock(width))
        self.reduce = nn.Sequential(ChannelNorm(width), nn.Conv2d(width, 2 * width, 2, 2))
        self.second = ConvNeXtBlock(2 * width)
        self.norm = nn.LayerNorm(2 * width)
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.reduce(self.first(self.stem(x))))
        logits: Tensor = self.head(self.norm(x.mean((2, 3))))
        return logits


class MixerBlock(nn.Module):
    """One perceptron across patches and one across channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(
            nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches)
        )
        self.within = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.within(self.norm2(x))
        return out


class Mixer(nn.Module):
    """An MLP-Mixer on patches of four pixels."""

    def __init__(self, size: int, width: int = 48) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.body = nn.Sequential(*(MixerBlock((size // 4) ** 2, width) for _ in range(3)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.body(self.patch(x).flatten(2).transpose(1, 2))
        logits: Tensor = self.head(self.norm(tokens).mean(1))
        return logits


class WindowBlock(nn.Module):
    """Attention within windows of four by four tokens, with a table of relative positions."""

    def __init__(self, width: int, heads: int, shift: int) -> None:
        super().__init__()
        self.heads, self.shift = heads, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(0.5 * torch.randn(49, heads))
        at = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        apart = at[:, :, None] - at[:, None] + 3
        self.register_buffer("index", apart[0] * 7 + apart[1])
        self.within = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Attend within windows of tokens (B, H, W, C)."""
        batch, high, wide, width = x.shape
        inner = self.norm1(x).roll((-self.shift, -self.shift), (1, 2))
        inner = inner.reshape(batch, high // 4, 4, wide // 4, 4, width).transpose(2, 3)
        tokens = self.qkv(inner.reshape(-1, 16, width))
        q, k, v = tokens.reshape(-1, 16, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        index: Tensor = self.get_buffer("index")
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + self.table[index].permute(2, 0, 1)
        mixed = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, width))
        mixed = mixed.reshape(batch, high // 4, wide // 4, 4, 4, width).transpose(2, 3)
        mixed = mixed.reshape(batch, high, wide, width).roll((self.shift, self.shift), (1, 2))
        x = x + mixed
        out: Tensor = x + self.within(self.norm2(x))
        return out


class Swin(nn.Module):
    """Patches of two pixels and three blocks of windows, the second one shifted."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 2, 2)
        self.body = nn.Sequential(*(WindowBlock(width, 4, shift) for shift in (0, 2, 0)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(self.patch(x).permute(0, 2, 3, 1))
        logits: Tensor = self.head(self.norm(x).mean((1, 2)))
        return logits


def uniform_lenet(size: int) -> nn.Module:
    """Return the paper's LeNet with sigmoids and weights from U(−0.5, 0.5)."""
    model = models.lenet(CLASSES, image=size)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def wide_lenet(size: int, width: int = 32) -> nn.Module:
    """Return LeNet with more channels, for images of more pixels than LeNet has gradients.

    Weights are smaller where more channels are summed, so that sigmoids see what LeNet's do.
    """
    layers: list[nn.Module] = []
    channels = 3
    for stride in (2, 2, 1):
        layers += [nn.Conv2d(channels, width, 5, stride, 2), nn.Sigmoid()]
        channels = width
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * (size // 4) ** 2, CLASSES))
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    for module in list(model.children())[2:]:
        for parameter in module.parameters():
            parameter.data.mul_((12 / width) ** 0.5)
    return model


SIX = ((1, 1), (2, 2), (4, 2))  # blocks by width and stride: seven convolutions
TWELVE = ((1, 1), (1, 1), (2, 2), (2, 1), (4, 2))  # eleven convolutions and a head
PLAIN_SIX = ((1, 1), (2, 2))  # five convolutions on the way and a head
PLAIN_EIGHT = ((1, 1), (1, 1), (2, 2))  # seven convolutions on the way and a head
PLAIN_TWELVE = ((1, 1), (1, 1), (1, 1), (2, 2), (2, 1))  # eleven convolutions and a head
KINDS: dict[str, Callable[[int], nn.Module]] = {
    "residual 6, no BatchNorm, SiLU": lambda size: PlainResidual(nn.SiLU, PLAIN_SIX, size),
    "residual 6, no BatchNorm, GELU": lambda size: PlainResidual(nn.GELU, PLAIN_SIX, size),
    "residual 8, no BatchNorm, SiLU": lambda size: PlainResidual(nn.SiLU, PLAIN_EIGHT, size),
    "residual 8, no BatchNorm, GELU": lambda size: PlainResidual(nn.GELU, PLAIN_EIGHT, size),
    "residual 12, no BatchNorm, SiLU": lambda size: PlainResidual(nn.SiLU, PLAIN_TWELVE, size),
    "residual 12, no BatchNorm, GELU": lambda size: PlainResidual(nn.GELU, PLAIN_TWELVE, size),
    "residual 8, SiLU": lambda size: ResidualNet(nn.SiLU, SIX),
    "residual 8, GELU": lambda size: ResidualNet(nn.GELU, SIX),
    "residual 12, SiLU": lambda size: ResidualNet(nn.SiLU, TWELVE),
    "residual 12, GELU": lambda size: ResidualNet(nn.GELU, TWELVE),
    "ConvNeXt-like": lambda size: ConvNeXt(),
    "MLP-Mixer": Mixer,
    "Swin-like": lambda size: Swin(),
    "LeNet, sigmoid": lambda size: uniform_lenet(size),
    "residual 6, no BatchNorm, tanh": lambda size: PlainResidual(nn.Tanh, PLAIN_SIX, size),
    "wide LeNet, sigmoid": lambda size: wide_lenet(size),
    "wide residual 6, no BatchNorm, SiLU": lambda size: PlainResidual(
        nn.SiLU, PLAIN_SIX, size, width=24
    ),
    "residual 8, ReLU": lambda size: ResidualNet(nn.ReLU, SIX),
}


def images(count: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images (N, 3, size, size) of the embedded set and their smoothed labels (N, C)."""
    drawn = list(data.samples(data.embedded(), data.Smoothing(), count, seed, data.CIFAR10_NORM))
    full = torch.stack([one.x.reshape(3, 32, 32) for one in drawn])
    labels = torch.stack([one.y.reshape(-1) for one in drawn])
    if size > full.shape[-1]:
        return F.interpolate(full, size=size, mode="bicubic"), labels
    return F.adaptive_avg_pool2d(full, size), labels


def build(kind: str, size: int, seed: int = 0) -> nn.Module:
    """Return a network in eval mode; BatchNorm has the statistics of real images."""
    torch.manual_seed(seed)
    model = KINDS[kind](size)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the mean over everything that is seen
    model.train()
    with torch.no_grad():
        model(images(CALIBRATION, size, 5)[0])
    return model.eval()
