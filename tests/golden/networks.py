"""Small networks whose weights come from a generator, written with torch alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def drawn(model: nn.Module, seed: int, gain: float = 1.0, dtype=torch.float32) -> nn.Module:
    """Return the model in eval mode, with uniform weights of a seed.

    Uniform numbers are the same bits under any instruction set; normal ones are not.
    """
    generator = torch.Generator().manual_seed(seed)
    normed = (nn.BatchNorm2d, nn.LayerNorm)
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False):
            bound = gain / max(p[0].numel(), 4) ** 0.5 if p.ndim > 1 else 0.1
            value = (torch.rand(p.shape, generator=generator) * 2 - 1) * bound
            if isinstance(module, normed) and name == "weight":
                value = value + 1
            p.data = value
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = torch.rand(module.num_features, generator=generator) - 0.5
            module.running_var = torch.rand(module.num_features, generator=generator) + 0.5
    return model.to(dtype).eval()


class Residual(nn.Module):
    """A convolutional network with a skip connection, which is no chain."""

    def __init__(self, classes: int, act: type[nn.Module] = nn.SiLU, size: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.block = nn.Conv2d(8, 8, 3, padding=1)
        self.act = act()
        self.head = nn.Linear(8 * (size // 2) ** 2, classes)
        self.down = nn.Conv2d(8, 8, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.act(self.stem(x))
        z = z + self.act(self.block(z))
        return self.head(self.act(self.down(z)).flatten(1))


class Vit(nn.Module):
    """A vision transformer of one layer over 9 patches of 2 by 2, with learned positions."""

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, stride=2)
        self.positions = nn.Parameter(torch.zeros(1, 9, width))
        self.layer = nn.TransformerEncoderLayer(width, 2, 24, 0.0, "gelu", batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        z = self.patch(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.layer(z)).mean(1))


def _linear(classes, bias=True):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, classes, bias=bias))


def _mlp(classes, act=nn.ReLU, width=24, bias=True, depth=1):
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(36, width, bias=bias), act()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width, bias=bias), act()]
    return nn.Sequential(*layers, nn.Linear(width, classes, bias=bias))


def _conv(classes, act=nn.ReLU, bias=True):
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), act(), nn.Conv2d(6, 6, 3, stride=2, padding=1), act(),
        nn.Flatten(), nn.Linear(54, classes, bias=bias),
    )  # fmt: skip


def _bn_pool(classes):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(12, classes),
    )  # fmt: skip


def _layernorm(classes):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 20), nn.GELU(), nn.LayerNorm(20), nn.Linear(20, classes)
    )


NETWORKS = {
    "linear": _linear,
    "linear_no_bias": lambda c: _linear(c, bias=False),
    "mlp": _mlp,
    "mlp_deep": lambda c: _mlp(c, depth=3),
    "mlp_wide": lambda c: _mlp(c, width=80),
    "mlp_tanh": lambda c: _mlp(c, nn.Tanh),
    "mlp_silu": lambda c: _mlp(c, nn.SiLU, width=48),
    "mlp_sigmoid": lambda c: _mlp(c, nn.Sigmoid, width=40),
    "mlp_leaky": lambda c: _mlp(c, nn.LeakyReLU, width=40),
    "mlp_no_bias": lambda c: _mlp(c, bias=False),
    "mlp_tanh_no_bias": lambda c: _mlp(c, nn.Tanh, bias=False),
    "mlp_gelu_deep": lambda c: _mlp(c, nn.GELU, width=40, depth=2),
    "conv": _conv,
    "conv_sigmoid": lambda c: _conv(c, nn.Sigmoid),
    "conv_tanh": lambda c: _conv(c, nn.Tanh),
    "conv_silu": lambda c: _conv(c, nn.SiLU),
    "conv_gelu": lambda c: _conv(c, nn.GELU),
    "conv_leaky": lambda c: _conv(c, nn.LeakyReLU),
    "conv_no_bias": lambda c: _conv(c, bias=False),
    "bn_pool": _bn_pool,
    "layernorm": _layernorm,
    "residual": Residual,
    "residual_tanh": lambda c: Residual(c, nn.Tanh),
    "residual_gelu": lambda c: Residual(c, nn.GELU),
    "residual_relu": lambda c: Residual(c, nn.ReLU),
    "vit": Vit,
    "vit_wide": lambda c: Vit(c, 32),
}
SHAPE = (1, 6, 6)


def network(name: str, classes: int, seed: int = 0, gain: float = 1.7, dtype=torch.float32):
    """Return a network of ``NETWORKS`` with weights of a seed; it takes inputs of ``SHAPE``."""
    return drawn(NETWORKS[name](classes), seed, gain, dtype)


def images(count: int, seed: int, dtype=torch.float32) -> Tensor:
    """Return random inputs (N, 1, 6, 6) between -1 and 1."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return (torch.rand(count, *SHAPE, generator=generator) * 2 - 1).to(dtype)


def labels(kind: str, count: int, classes: int, seed: int) -> Tensor:
    """Return soft labels (N, C) of one kind: one-hot, smoothed, mixed, smoothed mixed or any."""
    generator = torch.Generator().manual_seed(2000 + seed)
    own = torch.rand(count, classes, generator=generator, dtype=torch.float64)
    order, part = own.argsort(1, descending=True), own[:, :2]
    eye = torch.eye(classes, dtype=torch.float64)
    first, second = eye[order[:, 0]], eye[order[:, 1]]
    mix = 0.5 + 0.45 * part[:, :1]
    smooth = 0.05 + 0.25 * part[:, 1:]
    mixed = mix * first + (1 - mix) * second
    flat = torch.full_like(first, 1 / classes)
    found = {
        "onehot": first,
        "smoothed": (1 - smooth) * first + smooth * flat,
        "mixed": mixed,
        "smoothed_mixed": (1 - smooth) * mixed + smooth * flat,
        "any": (own**4) / (own**4).sum(1, keepdim=True),
    }
    return found[kind]


KINDS = ("onehot", "smoothed", "mixed", "smoothed_mixed", "any")
