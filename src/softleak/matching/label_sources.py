"""Where the label of a reconstruction comes from: the five columns of Table 3.

A source gives a label to keep (``free`` is false) or logits to start from; it sees the share and
what was recovered from it, never the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from softleak.errors import LabelError
from softleak.factors import head_gradients
from softleak.head import Head
from softleak.results import Recovery
from softleak.share import GradientShare

FAINT = 1e-6  # what an entry of a label is at least, to have a logit


@dataclass(frozen=True, eq=False)
class LabelStart:
    """A label (C,) that stays, or logits (C,) that are optimised with the input."""

    value: Tensor
    free: bool

    @property
    def logits(self) -> Tensor:
        """What an optimiser begins with; of no effect if the label stays."""
        return self.value if self.free else torch.zeros_like(self.value)


@dataclass(frozen=True, eq=False)
class Seen:
    """What a source may look at."""

    head: Head
    share: GradientShare
    recovery: Recovery | None


@runtime_checkable
class LabelSource(Protocol):
    """A way to a label."""

    def start(self, seen: Seen, seed: int) -> LabelStart | None:
        """The label to begin with; None if what was recovered does not hold one."""
        ...


@dataclass(frozen=True)
class RecoveredLabel:
    """Ours: the label recovered from the gradient, kept, or free to move from there (DLG+ours)."""

    free: bool = False

    def start(self, seen: Seen, seed: int) -> LabelStart | None:
        label = None if seen.recovery is None else seen.recovery.label
        if label is None:
            return None
        return LabelStart(label.clamp_min(FAINT).log() if self.free else label, self.free)


@dataclass(frozen=True)
class HardLabel:
    """iDLG: a one-hot label, its class that of the row with the lowest sum.

    Rows are ``(p_i − y_i) x``; of a feature that is positive on the whole, as sigmoids and ReLUs
    leave it, the row of the label's class points down.
    """

    def start(self, seen: Seen, seed: int) -> LabelStart | None:
        lowest = head_gradients(seen.head, [seen.share])[0].double().sum(1).argmin()
        return LabelStart(nn.functional.one_hot(lowest, seen.head.classes).double(), free=False)


@dataclass(frozen=True)
class RandomLabel:
    """DLG: logits from N(0, 1), optimised with the input."""

    def start(self, seen: Seen, seed: int) -> LabelStart | None:
        generator = torch.Generator().manual_seed(seed)
        return LabelStart(torch.randn(seen.head.classes, generator=generator).double(), free=True)


@dataclass(frozen=True, eq=False)
class GivenLabel:
    """A label (C,) somebody else knows."""

    label: Tensor

    def start(self, seen: Seen, seed: int) -> LabelStart | None:
        if self.label.shape != (seen.head.classes,):
            raise LabelError(
                f"expected a label of {seen.head.classes} entries, got {tuple(self.label.shape)}"
            )
        return LabelStart(self.label.double(), free=False)
