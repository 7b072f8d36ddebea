"""This module holds compression, which is often taken for a defence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from softleak.defenses.defense import Defense, as_known, is_random
from softleak.errors import OptionError
from softleak.share import GradientShare

INT8 = 127  # the largest integer of eight bits, both signs alike


@dataclass(frozen=True)
class Prune:
    """This keeps the largest entries of each gradient, a part ``kept``, and zeros the others."""

    kept: float
    random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.kept, int | float) or not 0 < self.kept <= 1:
            raise OptionError(
                f"expected the part of entries to keep, above 0 and up to 1, got {self.kept!r}"
            )

    def __call__(self, share: GradientShare) -> GradientShare:
        return share.map(lambda _, g: self._largest(g))

    def public(self, sent: GradientShare) -> GradientShare:
        """Return the share as it is: zeros show what was pruned."""
        return sent

    def _largest(self, g: Tensor) -> Tensor:
        flat = g.flatten()
        kept = flat.abs().topk(math.ceil(self.kept * len(flat)), sorted=False).indices
        return torch.zeros_like(flat).index_copy(0, kept, flat[kept]).view_as(g)


@dataclass(frozen=True)
class OnKept:
    """This applies another defence, and leaves at zero what is zero, as nothing is sent of it."""

    step: Defense

    def __call__(self, share: GradientShare) -> GradientShare:
        sent = self.step(share)
        return sent.map(lambda name, g: torch.where(share[name] != 0, g, torch.zeros_like(g)))

    @property
    def random(self) -> bool:
        """Return whether the other defence is random."""
        return is_random(self.step)

    def public(self, sent: GradientShare) -> GradientShare:
        """Return what was sent, with all that the other defence gives away."""
        return as_known(self.step, sent)


@dataclass(frozen=True)
class Cast:
    """This sends sixteen bits per entry: ``torch.float16`` or ``torch.bfloat16``."""

    dtype: torch.dtype
    random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.dtype not in (torch.float16, torch.bfloat16):
            raise OptionError(f"expected torch.float16 or torch.bfloat16, got {self.dtype!r}")

    def __call__(self, share: GradientShare) -> GradientShare:
        return share.map(lambda _, g: g.to(self.dtype))

    def public(self, sent: GradientShare) -> GradientShare:
        """Return the share as it is: its dtype says how it was rounded."""
        return sent


@dataclass(frozen=True)
class Int8:
    """This rounds each gradient to 255 levels between plus and minus its largest entry.

    The share holds the values the levels stand for. If ``declared``, it says how wide they are.
    """

    declared: bool = False
    random: ClassVar[bool] = False

    def __call__(self, share: GradientShare) -> GradientShare:
        sent = share.map(lambda _, g: _levels(g, _step(g)))
        return self.public(sent) if self.declared else sent

    def public(self, sent: GradientShare) -> GradientShare:
        """Return the share with the error of its levels, whose width its largest entry tells."""
        known = {
            name: math.hypot(_step(g) / math.sqrt(12), sent.noise(name)) for name, g in sent.items()
        }
        return replace(sent, rounding=known)


@dataclass(frozen=True)
class Sign:
    """This sends the sign of every entry: −1, 0 or 1."""

    random: ClassVar[bool] = False

    def __call__(self, share: GradientShare) -> GradientShare:
        return share.map(lambda _, g: g.sign())

    def public(self, sent: GradientShare) -> GradientShare:
        """Return the share as it is: entries of one size show what they are."""
        return sent


def _step(g: Tensor) -> float:
    return float(g.abs().max()) / INT8 if g.numel() else 0.0


def _levels(g: Tensor, step: float) -> Tensor:
    return (g / step).round() * step if step > 0 else g
