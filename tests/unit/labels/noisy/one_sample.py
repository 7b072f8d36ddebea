"""A head, the gradient of one sample at it, and everything that is true of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import softleak as sl
from softleak.labels.noisy.spectrum import Signal, Typical


@dataclass(frozen=True, eq=False)
class OneSample:
    head: sl.Head
    y: Tensor
    x: Tensor
    G: Tensor
    t: float

    @classmethod
    def of(cls, y: Tensor, inputs: int = 40, seed: int = 0) -> OneSample:
        generator = torch.Generator().manual_seed(seed)
        linear = nn.Linear(inputs, len(y)).double()
        with torch.no_grad():
            for parameter in linear.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / inputs**0.5)
        x = torch.rand(inputs, generator=generator, dtype=torch.double)
        delta = torch.softmax(linear(x).detach(), -1) - y
        return cls(sl.Head.of(linear), y, x, torch.outer(delta, x), float(delta.norm()))

    @property
    def u(self) -> Tensor:
        return torch.softmax(self.head.W @ self.x + self.head.b, -1).sub(self.y) / self.t

    def noisy(self, size: float, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return self.G + size * torch.randn(self.G.shape, generator=generator, dtype=torch.double)

    def signal(self, size: float, seed: int) -> Signal:
        return Signal.of(self.head, self.noisy(size, seed), size, self.typical)

    @property
    def typical(self) -> Typical:
        return Typical.unknown(self.head)


def smoothed(index: int, weight: float, classes: int = 6) -> Tensor:
    """``weight`` on one class, and the rest on the flat label."""
    y = torch.full((classes,), (1 - weight) / classes, dtype=torch.double)
    y[index] += weight
    return y
