"""Recurrent networks, transformers, routing and control flow that depends on the input."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.adversary.stranger import Stranger

GROUP = "sequences and routing"
STEPS, SIZE, WIDTH, CLASSES = 6, 8, 24, 10
SHAPE = (STEPS, SIZE)


class Recurrent(nn.Module):
    """A GRU or LSTM whose last state is classified."""

    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM], bias: bool = True) -> None:
        super().__init__()
        self.cell = kind(SIZE, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.cell(x)
        z: Tensor = self.head(states[:, -1])
        return z


class Encoder(nn.Module):
    """torch's own transformer layer, which fuses its attention in eval mode."""

    def __init__(self, norm_first: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(SIZE, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.encoder(self.embed(x)).mean(1))
        return z


class Experts(nn.Module):
    """A mixture of experts: the input decides which of them runs."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.flat, self.router = nn.Flatten(), nn.Linear(STEPS * SIZE, 3)
        outputs = WIDTH if inside else CLASSES
        self.experts = nn.ModuleList([nn.Linear(STEPS * SIZE, outputs) for _ in range(3)])
        self.head = nn.Linear(WIDTH, CLASSES) if inside else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.flat(x)
        weight, chosen = self.router(x).softmax(-1).max(-1)
        rows = [
            weight[i] * self.experts[int(one)](x[i]).relu() if isinstance(self.head, nn.Linear)
            else self.experts[int(one)](x[i])
            for i, one in enumerate(chosen)
        ]  # fmt: skip
        z: Tensor = self.head(torch.stack(rows))
        return z


class Branching(nn.Module):
    """Data-dependent control flow: as many rounds as the input is long."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.round = nn.Linear(STEPS * SIZE, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = self.embed(x.flatten(1))
        for _ in range(1 + int(x.abs().mean() * 3)):
            state = torch.tanh(self.round(state)) + state
        z: Tensor = self.head(state)
        return z


class TwoWays(nn.Module):
    """One head for inputs of positive mean, another for the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Flatten(), nn.Linear(STEPS * SIZE, WIDTH), nn.Tanh())
        self.high, self.low = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        positive = x.flatten(1).mean(1, keepdim=True) > 0
        if len(x) == 1:
            z: Tensor = (self.high if bool(positive) else self.low)(self.embed(x))
            return z
        return torch.where(positive, self.high(self.embed(x)), self.low(self.embed(x)))


class EveryToken(nn.Module):
    """The head is applied to every token and its logits are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(SIZE, WIDTH), nn.ReLU())
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.embed(x))
        return z.mean(1)


def _stranger(name: str, build: Callable[[], nn.Module], trained: int = 0) -> Stranger:
    return Stranger(name, GROUP, build, SHAPE, trained)


SEQUENCES = (
    _stranger("GRU", lambda: Recurrent(nn.GRU)),
    _stranger("GRU, no head bias, trained", lambda: Recurrent(nn.GRU, bias=False), 60),
    _stranger("LSTM", lambda: Recurrent(nn.LSTM)),
    _stranger("TransformerEncoderLayer", Encoder),
    _stranger("TransformerEncoderLayer, norm first, trained", lambda: Encoder(True), 60),
    _stranger("experts before the head", lambda: Experts(inside=True)),
    _stranger("experts as heads", lambda: Experts(inside=False)),
    _stranger("rounds by the input", Branching),
    _stranger("two heads, by the input", TwoWays),
    _stranger("head on every token", EveryToken),
)
