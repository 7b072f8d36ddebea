"""Compression, which is often taken for a defence: pruning, fewer bits, signs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.errors import OptionError
from softleak.share import GradientShare

INT8 = 127  # the largest integer of eight bits, both signs alike


@dataclass(frozen=True)
class Prune:
    """Keep the largest entries of each gradient, a part ``kept`` of them; zero the rest."""

    kept: float

    def __post_init__(self) -> None:
        if not isinstance(self.kept, int | float) or not 0 < self.kept <= 1:
            raise OptionError(
                f"expected the part of entries to keep, above 0 and up to 1, got {self.kept!r}"
            )

    def __call__(self, share: GradientShare) -> GradientShare:
        return share.map(lambda _, g: self._largest(g))

    def _largest(self, g: Tensor) -> Tensor:
        flat = g.flatten()
        kept = flat.abs().topk(math.ceil(self.kept * len(flat)), sorted=False).indices
        return torch.zeros_like(flat).index_copy(0, kept, flat[kept]).view_as(g)


@dataclass(frozen=True)
class Cast:
    """Send sixteen bits: ``torch.float16`` or ``torch.bfloat16``."""

    dtype: torch.dtype

    def __post_init__(self) -> None:
        if self.dtype not in (torch.float16, torch.bfloat16):
            raise OptionError(f"expected torch.float16 or torch.bfloat16, got {self.dtype!r}")

    def __call__(self, share: GradientShare) -> GradientShare:
        return share.map(lambda _, g: g.to(self.dtype))


@dataclass(frozen=True)
class Int8:
    """Round each gradient to 255 levels between plus and minus its largest entry.

    The share holds the values the levels stand for. If ``declared``, it says how wide they are.
    """

    declared: bool = False

    def __call__(self, share: GradientShare) -> GradientShare:
        steps = {name: _step(g) for name, g in share.items()}
        sent = share.map(lambda name, g: _levels(g, steps[name]))
        if not self.declared:
            return sent
        known = {
            name: math.hypot(step / math.sqrt(12), sent.noise(name)) for name, step in steps.items()
        }
        return replace(sent, rounding=known)


@dataclass(frozen=True)
class Sign:
    """Send the sign of every entry: −1, 0 or 1."""

    def __call__(self, share: GradientShare) -> GradientShare:
        return share.map(lambda _, g: g.sign())


def _step(g: Tensor) -> float:
    return float(g.abs().max()) / INT8 if g.numel() else 0.0


def _levels(g: Tensor, step: float) -> Tensor:
    return (g / step).round() * step if step > 0 else g
