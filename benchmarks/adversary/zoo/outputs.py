"""Models whose output is not, or only nearly, what their last linear layer computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.adversary.stranger import VECTOR, Stranger

GROUP = "strange outputs"
FEATURES, CLASSES = 24, 10


def body(bias: bool = True) -> nn.Module:
    """What stands before every head here; without biases an input of zeros gives logits of zero."""
    return nn.Sequential(nn.Linear(VECTOR[0], FEATURES, bias=bias), nn.ReLU())


class Behind(nn.Module):
    """A linear head, and something behind it."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.body = body(bias)
        self.head = nn.Linear(FEATURES, CLASSES, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.head(self.body(x)))

    def after(self, z: Tensor) -> Tensor:
        return z


class Temperature(Behind):
    """A fixed temperature behind the head."""

    def after(self, z: Tensor) -> Tensor:
        return z / 2.5


class LogitScale(Behind):
    """A learned scale behind the head, as CLIP has it."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__(bias)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def after(self, z: Tensor) -> Tensor:
        return z * self.scale.exp()


class Prior(Behind):
    """Logit adjustment: the log frequencies of the classes are added."""

    def after(self, z: Tensor) -> Tensor:
        return z + torch.linspace(-2, 1, z.shape[-1], dtype=z.dtype)


class Bounded(Behind):
    """Logits softly capped, as Gemma does."""

    def after(self, z: Tensor) -> Tensor:
        return 0.5 * torch.tanh(z / 0.5)


class Clamped(Behind):
    """Logits cut off where they are small: on many inputs nothing is changed."""

    def after(self, z: Tensor) -> Tensor:
        return z.clamp(-0.3, 0.3)


class Sorted(Behind):
    """The classes in another order."""

    def after(self, z: Tensor) -> Tensor:
        return z.flip(-1)


class LogSoftmax(Behind):
    """A log-softmax behind the head, which changes no gradient."""

    def after(self, z: Tensor) -> Tensor:
        return z.log_softmax(-1)


class Softmax(Behind):
    """A softmax behind the head: a mistake people make before a cross-entropy."""

    def after(self, z: Tensor) -> Tensor:
        return z.softmax(-1)


class LargeOnly(Behind):
    """A temperature that acts on inputs of more than the usual size only."""

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.body(x))
        hot = x.flatten(1).norm(dim=1, keepdim=True) > 1.1 * x[0].numel() ** 0.5
        return torch.where(hot, z / 3, z)


class TwoHeads(nn.Module):
    """Two heads on one body, combined with the weights ``own`` and ``other``."""

    def __init__(self, bias: bool = True, own: float = 0.5, other: float = 0.5) -> None:
        super().__init__()
        self.body, self.first = body(bias), nn.Linear(FEATURES, CLASSES, bias=bias)
        self.second = nn.Linear(FEATURES, CLASSES, bias=bias)
        self.own, self.other = own, other

    def forward(self, x: Tensor) -> Tensor:
        feature = self.body(x)
        z: Tensor = self.own * self.first(feature) + self.other * self.second(feature)
        return z


class Ensemble(nn.Module):
    """Two networks of their own, their logits averaged."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Behind(bias), Behind(bias)])

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([part(x) for part in self.parts]).mean(0)


class WideAndDeep(nn.Module):
    """A linear model of the input beside a network."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.wide = nn.Linear(VECTOR[0], CLASSES, bias=bias)
        self.deep = nn.Sequential(body(bias), nn.Linear(FEATURES, CLASSES, bias=bias))

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.wide(x) + self.deep(x)
        return z


class Cosine(nn.Module):
    """Logits are cosines of feature and class vectors, times a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = body(), nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        feature = nn.functional.normalize(self.body(x), dim=-1)
        weight = nn.functional.normalize(self.head.weight, dim=-1)
        return 8.0 * feature @ weight.T


class UnitFeature(nn.Module):
    """The feature has length eight before a plain head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = body(), nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(8.0 * nn.functional.normalize(self.body(x), dim=-1))
        return z


def _stranger(name: str, build: Callable[[], nn.Module], trained: int = 0) -> Stranger:
    return Stranger(name, GROUP, build, VECTOR, trained)


def _bias_free(name: str, build: Callable[..., nn.Module], trained: int = 0) -> Stranger:
    """The model without biases, whose logits at an input of zeros give nothing away."""
    return _stranger(f"{name}, no bias", partial(build, bias=False), trained)


BEHIND: Mapping[str, Callable[..., nn.Module]] = {
    "temperature behind the head": Temperature,
    "learned logit scale": LogitScale,
    "soft cap": Bounded,
    "averaged heads": TwoHeads,
    "nearly one head": partial(TwoHeads, own=1.0, other=1e-3),
    "ensemble": Ensemble,
    "wide and deep": WideAndDeep,
    "log-softmax": LogSoftmax,
    "classes reversed": Sorted,
    "temperature on large inputs": LargeOnly,
}
OUTPUTS = (
    *(_stranger(name, build) for name, build in BEHIND.items()),
    *(_bias_free(name, build) for name, build in BEHIND.items()),
    _bias_free("temperature behind the head, trained", Temperature, 60),
    _stranger("log-softmax, trained", LogSoftmax, 60),
    _stranger("prior added", Prior),
    _stranger("clamped", Clamped),
    _stranger("softmax", Softmax),
    _stranger("cosine head", Cosine),
    _stranger("feature of unit length", UnitFeature),
)
