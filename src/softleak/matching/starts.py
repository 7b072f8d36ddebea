"""Starts say where the search for an input begins: at noise, or at an image that is near."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from softleak.errors import OptionError


@runtime_checkable
class Start(Protocol):
    """This is a first iterate of the input."""

    @property
    def near(self) -> bool:
        """Whether the start is thought to be close to the answer, where a prior only harms."""
        ...

    def draw(self, shape: tuple[int, ...], attempt: int) -> Tensor:
        """Return an input of this shape, which is another one for every attempt."""
        ...


@dataclass(frozen=True)
class Noise:
    """This is entries from N(0, 1), the same for every share, so that only the shares differ.

    Attributes:
        seed: the seed of the first attempt.
        stride: what is added to the seed for each further attempt; large, so that the attempts of
            neighbouring seeds do not coincide.
    """

    seed: int = 0
    stride: int = 7919

    @property
    def near(self) -> bool:
        return False

    def draw(self, shape: tuple[int, ...], attempt: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + self.stride * attempt)
        return torch.randn(shape, generator=generator)


@dataclass(frozen=True, eq=False)
class Image:
    """An input that is near already, such as exact inversion returns.

    Further attempts begin from noise.

    Attributes:
        input: the first iterate, of the shape of one input, without a batch dimension.
    """

    input: Tensor

    @property
    def near(self) -> bool:
        return True

    def draw(self, shape: tuple[int, ...], attempt: int) -> Tensor:
        if tuple(self.input.shape) != shape:
            raise OptionError(
                f"expected a start of shape {shape}, got {tuple(self.input.shape)}; give one "
                "input without a batch dimension"
            )
        if not bool(self.input.isfinite().all()):
            raise OptionError(
                "expected a start of finite numbers, got NaN or infinity; begin from "
                "Noise() instead"
            )
        return self.input if attempt == 0 else Noise().draw(shape, attempt)
