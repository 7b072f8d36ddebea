"""Where an input begins: noise, or an image that is already near."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from softleak.errors import OptionError


@runtime_checkable
class Start(Protocol):
    """A first iterate."""

    @property
    def near(self) -> bool:
        """Whether it is thought to be close to the answer, so that a prior could only do harm."""
        ...

    def draw(self, shape: tuple[int, ...], attempt: int) -> Tensor:
        """An input of a shape, another one for every attempt."""
        ...


@dataclass(frozen=True)
class Noise:
    """N(0, 1), the same for every share, so that only what they hold makes a difference."""

    seed: int = 0

    @property
    def near(self) -> bool:
        return False

    def draw(self, shape: tuple[int, ...], attempt: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + 7919 * attempt)
        return torch.randn(shape, generator=generator)


@dataclass(frozen=True, eq=False)
class Image:
    """An input such as exact inversion returns; further attempts begin from noise."""

    input: Tensor

    @property
    def near(self) -> bool:
        return True

    def draw(self, shape: tuple[int, ...], attempt: int) -> Tensor:
        if tuple(self.input.shape) != shape:
            raise OptionError(f"expected a start of shape {shape}, got {tuple(self.input.shape)}")
        if not bool(self.input.isfinite().all()):
            raise OptionError("expected a start of finite numbers, got NaN or infinity")
        return self.input if attempt == 0 else Noise().draw(shape, attempt)
