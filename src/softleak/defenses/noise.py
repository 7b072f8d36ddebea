"""This module adds noise of a given standard deviation to everything the client sends.

The paper's Table 5 says "variance"; the numbers there are standard deviations, and its code
perturbs one row of the head's gradient only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from softleak.defenses.defense import positive
from softleak.errors import OptionError
from softleak.share import GradientShare

Source = torch.Generator | np.random.Generator | int


@dataclass(frozen=True)
class GaussianNoise:
    """This adds independent Gaussian noise to every entry.

    ``source`` is a generator, for fresh noise on each share, or a seed, for the same noise on
    each. What is really sent wants NumPy's ``default_rng()``, seeded by the operating system: a
    seed of torch has 32 bits, which can be tried one by one. Only if ``declared`` does the share
    say how much noise it carries.
    """

    std: float
    source: Source
    declared: bool = False
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self.std, "the noise's standard deviation")

    def __call__(self, share: GradientShare) -> GradientShare:
        generator = _generator(self.source)
        noisy = share.map(lambda _, g: g + self.std * _normal(g, generator))
        return noisy.expecting(self.std) if self.declared else noisy

    def public(self, sent: GradientShare) -> GradientShare:
        """Return the share as it is: its receiver estimates the noise."""
        return sent


@dataclass(frozen=True)
class LaplaceNoise:
    """This adds independent Laplace noise of scale ``std/√2`` to every entry."""

    std: float
    source: Source
    declared: bool = False
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self.std, "the noise's standard deviation")

    def __call__(self, share: GradientShare) -> GradientShare:
        generator, scale = _generator(self.source), self.std / math.sqrt(2)
        noisy = share.map(lambda _, g: g + scale * _laplace(g, generator))
        return noisy.expecting(self.std) if self.declared else noisy

    def public(self, sent: GradientShare) -> GradientShare:
        """Return the share as it is: its receiver estimates the noise."""
        return sent


@dataclass(frozen=True)
class PercentileNoise:
    """This adds Gaussian noise in units of a percentile of the share's absolute entries.

    Entries that are zero do not count. This is how the noise of NVIDIA FLARE's study of gradient
    inversion is sized.
    """

    part: float
    percentile: float
    source: Source
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self.part, "the noise's part of the percentile")
        if not 0 <= self.percentile <= 100:
            raise OptionError(f"expected a percentile from 0 to 100, got {self.percentile!r}")

    def __call__(self, share: GradientShare) -> GradientShare:
        entries = np.concatenate([g.double().abs().flatten().cpu().numpy() for g in share.values()])
        told = entries[entries > 0]
        size = float(np.percentile(told, self.percentile)) if told.size else 0.0
        return GaussianNoise(self.part * size, self.source)(share) if size else share

    def public(self, sent: GradientShare) -> GradientShare:
        """Return the share as it is: its receiver estimates the noise."""
        return sent


def _generator(source: Source) -> torch.Generator | np.random.Generator:
    return torch.Generator().manual_seed(source) if isinstance(source, int) else source


def _normal(like: Tensor, generator: torch.Generator | np.random.Generator) -> Tensor:
    if isinstance(generator, np.random.Generator):
        return torch.from_numpy(np.asarray(generator.standard_normal(like.shape))).to(like)
    return torch.randn(like.shape, generator=generator, dtype=_drawn(like)).to(like)


def _laplace(like: Tensor, generator: torch.Generator | np.random.Generator) -> Tensor:
    """Return the difference of two exponential variables."""
    if isinstance(generator, np.random.Generator):
        return torch.from_numpy(np.asarray(generator.laplace(size=like.shape))).to(like)
    drawn = torch.empty(2, *like.shape, dtype=_drawn(like)).exponential_(generator=generator)
    return (drawn[0] - drawn[1]).to(like)


def _drawn(like: Tensor) -> torch.dtype:
    return torch.promote_types(like.dtype, torch.float32)
