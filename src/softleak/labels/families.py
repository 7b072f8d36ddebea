"""Label families (§3.4): what is assumed of a label when only the head's gradient is known.

A family is any object with a ``project`` method; see ``Family``. The paper's exclusion set is
the top ``k`` entries, which the families here leave free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from softleak.errors import LabelError

SMALLEST = 1e-300  # keeps quotients of errors finite


@runtime_checkable
class Family(Protocol):
    """A set of labels, given by its nearest member to any vector."""

    def project(self, y: Tensor) -> Tensor:
        """The member nearest to each vector of ``y`` (…, C); entries left free stay as they are."""
        ...


@runtime_checkable
class Nested(Family, Protocol):
    """A family some of whose members come arbitrarily close to a simpler one."""

    @property
    def simpler(self) -> Family | None:
        """That family: labels near it are looked for around its own solutions."""
        ...


@runtime_checkable
class Weighted(Family, Protocol):
    """A family whose members have free parameters that exact entries tell better than others."""

    def nearest(self, y: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """The member nearest to ``y`` (…, C) in units of ``error``, and its own error (…, C)."""
        ...


@dataclass(frozen=True)
class Mixed:
    """``k`` classes in any proportion, all others zero: mixup and CutMix."""

    k: int = 2

    def __post_init__(self) -> None:
        _check_free(self.k)

    @property
    def simpler(self) -> Family | None:
        """The family that labels with a vanishing last weight come close to."""
        return Mixed(self.k - 1) if self.k > 1 else None

    def project(self, y: Tensor) -> Tensor:
        """Zero all but the top ``k``."""
        return torch.where(_top(y, self.k), y.clamp_min(0.0), 0.0)


@dataclass(frozen=True)
class SmoothedMixed:
    """``k`` classes in any proportion above one floor shared by all others, as timm mixes."""

    k: int = 2

    def __post_init__(self) -> None:
        _check_free(self.k)

    @property
    def simpler(self) -> Family | None:
        """The family that labels with a vanishing last weight come close to."""
        return SmoothedMixed(self.k - 1) if self.k > 1 else None

    def project(self, y: Tensor) -> Tensor:
        """Level all but the top ``k`` to their mean, which cannot be negative."""
        free = _top(y, self.k)
        rest = (~free).sum(-1, keepdim=True).clamp_min(1)  # ties leave more than k free
        floor = torch.where(free, 0.0, y).sum(-1, keepdim=True) / rest
        floor = floor.clamp_min(0.0)
        return torch.where(free, y.maximum(floor), floor)

    def nearest(self, y: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """The same with the floor at the weighted mean: exact entries tell it, not coarse ones."""
        free = _top(y, self.k)
        best = torch.where(free, torch.inf, error).amin(-1, keepdim=True).clamp_min(SMALLEST)
        weight = torch.where(free, 0.0, (best / error.clamp_min(SMALLEST)).square())
        total = weight.sum(-1, keepdim=True).clamp_min(SMALLEST)
        floor = ((weight * y).sum(-1, keepdim=True) / total).clamp_min(0.0)
        member = torch.where(free, y.maximum(floor), floor)
        return member, torch.where(free, 0.0, best / total.sqrt())


@dataclass(frozen=True)
class OneHot:
    """One class, certain."""

    def project(self, y: Tensor) -> Tensor:
        """Zero all but the top: the pseudo label sums to one, so the top is then one."""
        return Mixed(1).project(y)


@dataclass(frozen=True)
class Smoothed:
    """One class, smoothed by an unknown amount; one-hot labels are among them."""

    def project(self, y: Tensor) -> Tensor:
        """Level all but the top."""
        return SmoothedMixed(1).project(y)

    def nearest(self, y: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Level all but the top to what the most exact of them say."""
        return SmoothedMixed(1).nearest(y, error)


@dataclass(frozen=True)
class AnyLabel:
    """Every point of the simplex: distilled, crowd-sourced, arbitrary."""

    def project(self, y: Tensor) -> Tensor:
        """No entry below zero; the sum is one for every scalar (Theorem 1)."""
        return y.clamp_min(0.0)


def _check_free(k: int) -> None:
    if not isinstance(k, int) or k < 1:
        raise LabelError(f"expected a whole number of free classes, at least one; got k={k}")


def _top(y: Tensor, k: int) -> Tensor:
    """(…, C) mask of the ``k`` largest entries (and of those equal to the least of them)."""
    if k >= y.shape[-1]:
        return torch.ones_like(y, dtype=torch.bool)
    least = y.amax(-1, keepdim=True) if k == 1 else y.topk(k, sorted=True).values[..., -1:]
    return y >= least


# The simplest first: the first that fits names what was found.
KNOWN: tuple[Family, ...] = (OneHot(), Smoothed(), Mixed(2), SmoothedMixed(2))
