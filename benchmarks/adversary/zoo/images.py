"""Hand-written convolutional networks: normalisations, pooling, mixing, dropout, train mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.adversary.stranger import IMAGE, Stranger

GROUP = "convolutional networks"
WIDTH = 16

Norm = Callable[[int], nn.Module]
MEAN = partial(nn.AdaptiveAvgPool2d, 1)


class SqueezeExcite(nn.Module):
    """Channels are weighed by a small network of their means."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, width), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.gate(x.mean((-1, -2)))
        return x * gate[..., None, None]


class Mixer(nn.Module):
    """One block of an MLP-Mixer."""

    def __init__(self, patch: int = 8, width: int = 24, classes: int = 10) -> None:
        super().__init__()
        tokens = (IMAGE[1] // patch) ** 2
        self.embed = nn.Conv2d(IMAGE[0], width, patch, patch)
        self.tokens = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norms[1](x))
        z: Tensor = self.head(self.norms[2](x).mean(1))
        return z


class Dense(nn.Module):
    """Features of every depth side by side, as in DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        one = torch.relu(self.first(x))
        two = torch.relu(self.second(one))
        z: Tensor = self.head(torch.cat([one.mean((-1, -2)), two.mean((-1, -2))], 1))
        return z


def convolutional(
    norm: Norm | None = None,
    extra: Norm | None = None,
    bias: bool = True,
    head_bias: bool = True,
    pool: Callable[[], nn.Module] = MEAN,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Module:
    """Two convolutions with a normalisation each, a pooling and a head."""
    layers: list[nn.Module] = []
    for inputs in (IMAGE[0], WIDTH):
        layers.append(nn.Conv2d(inputs, WIDTH, 3, 2, 1, bias=bias))
        layers += [norm(WIDTH)] if norm else []
        layers.append(activation())
    layers += [extra(WIDTH)] if extra else []
    return nn.Sequential(*layers, pool(), nn.Flatten(), nn.LazyLinear(10, bias=head_bias))


def built(**settings: object) -> nn.Module:
    """A convolutional network whose head has been given its size."""
    model = convolutional(**settings)  # type: ignore[arg-type]
    was = model.training
    with torch.no_grad():
        model.eval()(torch.zeros(1, *IMAGE))
    return model.train(was)


def _group_norm(width: int) -> nn.Module:
    return nn.GroupNorm(4, width)


def _instance_norm(width: int) -> nn.Module:
    return nn.InstanceNorm2d(width, affine=True)


def _dropout(_: int) -> nn.Module:
    return nn.Dropout(0.3)


def _stranger(
    name: str, trained: int = 0, train_mode: bool = False, **settings: object
) -> Stranger:
    return Stranger(name, GROUP, partial(built, **settings), IMAGE, trained, train_mode=train_mode)


IMAGES = (
    _stranger("convolution, BatchNorm, ReLU, pool", norm=nn.BatchNorm2d),
    _stranger("convolution, BatchNorm, trained", 40, norm=nn.BatchNorm2d, head_bias=False),
    _stranger("BatchNorm in train mode", 0, True, norm=nn.BatchNorm2d, head_bias=False),
    _stranger("BatchNorm in train mode, trained", 40, True, norm=nn.BatchNorm2d),
    _stranger("no normalisation", bias=True, head_bias=False),
    _stranger("GroupNorm", norm=_group_norm),
    _stranger("GroupNorm, SiLU, trained", 40, norm=_group_norm, activation=nn.SiLU,
              head_bias=False),
    _stranger("InstanceNorm", norm=_instance_norm),
    _stranger("squeeze and excite", norm=nn.BatchNorm2d, extra=SqueezeExcite),
    _stranger("max pooling", pool=partial(nn.AdaptiveMaxPool2d, 1), head_bias=False),
    _stranger("max pooling, flattened", pool=partial(nn.MaxPool2d, 2)),
    _stranger("flattened", pool=nn.Identity, head_bias=False),
    _stranger("dropout in train mode", 0, True, extra=_dropout),
    _stranger("dropout in eval mode", 0, False, extra=_dropout, head_bias=False),
    Stranger("MLP-Mixer", GROUP, Mixer),
    Stranger("MLP-Mixer, trained", GROUP, Mixer, trained=40),
    Stranger("dense features", GROUP, Dense),
)  # fmt: skip
