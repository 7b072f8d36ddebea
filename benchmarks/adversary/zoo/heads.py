"""Last layers that are called linear and are not quite, or whose weight is made of others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.weight_norm import weight_norm as old_weight_norm

from benchmarks.adversary.stranger import VECTOR, Stranger
from benchmarks.adversary.zoo.outputs import CLASSES, FEATURES, Behind, body

GROUP = "strange heads"


class Rescaling(nn.Linear):
    """Doubles what a linear layer computes."""

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * super().forward(x)


class Noisy(nn.Linear):
    """Adds noise to its weight in every run."""

    def forward(self, x: Tensor) -> Tensor:
        noise = 0.05 * torch.randn_like(self.weight)
        return nn.functional.linear(x, self.weight + noise, self.bias)


class Standardised(nn.Linear):
    """Standardises its weight, row by row, before use."""

    def forward(self, x: Tensor) -> Tensor:
        mean, std = self.weight.mean(1, keepdim=True), self.weight.std(1, keepdim=True)
        return nn.functional.linear(x, (self.weight - mean) / std, self.bias)


class FakeQuantised(nn.Linear):
    """Quantisation-aware: rounds its weight to four bits, with a straight-through gradient."""

    def forward(self, x: Tensor) -> Tensor:
        step = self.weight.detach().abs().max() / 7
        rounded = (self.weight / step).round() * step
        return nn.functional.linear(x, self.weight + (rounded - self.weight).detach(), self.bias)


class QuantisedInput(nn.Linear):
    """Rounds what enters to eight bits, with a straight-through gradient."""

    def forward(self, x: Tensor) -> Tensor:
        step = x.detach().abs().max() / 127 + 1e-12
        return super().forward(x + ((x / step).round() * step - x).detach())


class DropConnect(nn.Linear):
    """Halves the gradient of its weight, not its output."""

    def forward(self, x: Tensor) -> Tensor:
        weight = 0.5 * self.weight + (0.5 * self.weight).detach()
        return nn.functional.linear(x, weight, self.bias)


class LowRank(nn.Linear):
    """LoRA on the head: a frozen weight and a trainable product beside it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.weight.requires_grad_(False)
        self.down = nn.Parameter(0.1 * torch.randn(4, inputs))
        self.up = nn.Parameter(0.1 * torch.randn(outputs, 4))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.down.T @ self.up.T


class Applied(nn.Module):
    """The head is applied twice: its first logits are fed back into the feature."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.back = body(), nn.Linear(CLASSES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        feature = self.body(x)
        z: Tensor = self.head(feature + self.back(self.head(feature)))
        return z


class Views(nn.Module):
    """The mean of the head's logits of two views of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = body(), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = (self.head(self.body(x)) + self.head(self.body(x.flip(-1)))) / 2
        return z


class Tied(nn.Module):
    """The head's weight is the embedding's, transposed in use."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(VECTOR[0], CLASSES)
        self.head = nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(torch.tanh(self.embed(x)) @ self.head.weight)
        return z


class ConvolutionHead(nn.Module):
    """A 1×1 convolution and a pooling in place of a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU())
        self.head = nn.Conv2d(16, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.body(x))
        return z.mean((-1, -2)).flatten(1)


class ConvolutionLast(ConvolutionHead):
    """The same with a linear layer in the body, which produces no logits."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.body(x)
        gate = self.gate(maps.mean((-1, -2))).sigmoid()
        z: Tensor = self.head(maps).mean((-1, -2)) * gate
        return z


def with_head(make: Callable[[int, int], nn.Module]) -> nn.Module:
    """The usual body with another head."""
    model = Behind()
    model.head = make(FEATURES, CLASSES)  # type: ignore[assignment]
    return model


def hooked() -> nn.Module:
    """A hook rescales what the head puts out."""
    model = Behind()
    model.head.register_forward_hook(lambda _, __, z: 0.5 * z)
    return model


def pre_hooked() -> nn.Module:
    """A hook rescales what enters the head."""
    model = Behind()
    model.head.register_forward_pre_hook(lambda _, inputs: (3.0 * inputs[0],))
    return model


def gradient_hooked() -> nn.Module:
    """A hook divides the gradient of the head's weight by three."""
    model = Behind()
    model.head.weight.register_hook(lambda g: g / 3)  # type: ignore[no-untyped-call]
    return model


def frozen() -> nn.Module:
    """Only the head's bias is trained of the head."""
    model = Behind()
    model.head.weight.requires_grad_(False)
    return model


def zeroed() -> nn.Module:
    """The head starts at zero, as in fine-tuning."""
    model = Behind()
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    return model


def _linear(kind: type[nn.Linear]) -> Callable[[], nn.Module]:
    return partial(with_head, kind)


def _stranger(name: str, build: Callable[[], nn.Module], trained: int = 0) -> Stranger:
    shape = (3, 32, 32) if "convolution" in name else VECTOR
    return Stranger(name, GROUP, build, shape, trained)


HEADS = (
    _stranger("rescaling subclass", _linear(Rescaling)),
    _stranger("noisy head", _linear(Noisy)),
    _stranger("standardised head", _linear(Standardised)),
    _stranger("quantisation-aware head", _linear(FakeQuantised)),
    _stranger("quantisation-aware head, trained", _linear(FakeQuantised), 60),
    _stranger("quantised input", _linear(QuantisedInput)),
    _stranger("half the head's gradient", _linear(DropConnect)),
    _stranger("low-rank adapter", _linear(LowRank)),
    _stranger("hook on the output", hooked),
    _stranger("hook on the input", pre_hooked),
    _stranger("hook on the gradient", gradient_hooked),
    _stranger(
        "weight norm",
        partial(with_head, lambda i, o: parametrizations.weight_norm(nn.Linear(i, o))),
    ),
    _stranger("old weight norm", partial(with_head, lambda i, o: old_weight_norm(nn.Linear(i, o)))),
    _stranger(
        "spectral norm",
        partial(with_head, lambda i, o: parametrizations.spectral_norm(nn.Linear(i, o))),
    ),
    _stranger("head applied twice", Applied),
    _stranger("two views", Views),
    _stranger("tied head", Tied),
    _stranger("convolution as head", ConvolutionHead),
    _stranger("convolution as head, gated", ConvolutionLast),
    _stranger("frozen head weight", frozen),
    _stranger("head of zeros", zeroed),
)
