"""Label sources say which label a reconstruction uses: the five columns of Table 3.

A source gives a label to keep, or logits that are optimised with the input. It sees the share and
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
from softleak.results import BatchRecovery, Recovery
from softleak.share import GradientShare


@dataclass(frozen=True, eq=False)
class LabelStart:
    """This is the label that a reconstruction begins with.

    Attributes:
        value: a soft label (C,) that is kept, or logits (C,) if the label is free; (B, C) for the
            samples of a batch.
        free: whether the label is optimised together with the input; (B,) for a batch.
    """

    value: Tensor
    free: bool | Tensor

    @property
    def freed(self) -> Tensor:
        """Whether each label is optimised, as a tensor () or (B,)."""
        given = torch.as_tensor(self.free, device=self.value.device)
        return given.expand(self.value.shape[:-1])

    @property
    def logits(self) -> Tensor:
        """The logits an optimiser begins with; zeros without effect where the label is kept."""
        return torch.where(self.freed[..., None], self.value, 0.0)

    @property
    def kept(self) -> Tensor:
        """The labels that are kept; zeros without effect where the label is free."""
        return torch.where(self.freed[..., None], 0.0, self.value)


@dataclass(frozen=True, eq=False)
class Seen:
    """What a label source may look at: the head, the share, and what was recovered from it."""

    head: Head
    share: GradientShare
    recovery: Recovery | BatchRecovery | None


@runtime_checkable
class LabelSource(Protocol):
    """A way to obtain a label from what was seen."""

    def start(self, seen: Seen) -> LabelStart | None:
        """Return the label to begin with, or None if what was recovered does not hold one."""
        ...


@dataclass(frozen=True)
class RecoveredLabel:
    """This is the label recovered from the gradient (ours), or a free one from there (DLG+ours).

    Of a batch it is the label of every sample that was found. Those of the others are free, and
    begin with every class alike.

    Attributes:
        free: whether the label is optimised from there on.
        floor: the least entry of a label, so that a free one has a finite logit.
    """

    free: bool = False
    floor: float = 1e-6

    def start(self, seen: Seen) -> LabelStart | None:
        if isinstance(seen.recovery, BatchRecovery):
            return self._batch(seen.recovery)
        label = None if seen.recovery is None else seen.recovery.label
        if label is None:
            return None
        return LabelStart(label.clamp_min(self.floor).log() if self.free else label, self.free)

    def _batch(self, recovery: BatchRecovery) -> LabelStart | None:
        found = [one.label for one in recovery.samples if one.label is not None]
        if not found:
            return None
        own = torch.stack(found)
        own = own.clamp_min(self.floor).log() if self.free else own
        value = torch.cat([own, own.new_zeros(recovery.size - len(own), own.shape[1])])
        kept = 0 if self.free else len(own)
        return LabelStart(value, torch.arange(len(value), device=value.device) >= kept)


@dataclass(frozen=True)
class HardLabel:
    """The one-hot label of iDLG, whose class is that of the row with the lowest sum.

    The rows of the head's gradient are ``(p_i − y_i) x``. If the entries of the feature ``x``
    have a positive sum, as after sigmoids and ReLUs, the lowest sum belongs to the class with the
    largest ``y_i − p_i``, which is that of a hard label.
    """

    def start(self, seen: Seen) -> LabelStart | None:
        lowest = head_gradients(seen.head, [seen.share])[0].double().sum(1).argmin()
        return LabelStart(nn.functional.one_hot(lowest, seen.head.classes).double(), free=False)


@dataclass(frozen=True)
class RandomLabel:
    """This is logits from N(0, 1), optimised with the input (DLG).

    Attributes:
        seed: the seed of the logits; another one than that of the input.
    """

    seed: int = 1

    def start(self, seen: Seen) -> LabelStart | None:
        generator = torch.Generator().manual_seed(self.seed)
        return LabelStart(torch.randn(seen.head.classes, generator=generator).double(), free=True)


@dataclass(frozen=True, eq=False)
class GivenLabel:
    """A label that somebody else knows.

    Attributes:
        label: the soft label (C,); or those of all samples (B, C), if the share is of a batch.
    """

    label: Tensor

    def start(self, seen: Seen) -> LabelStart | None:
        if self.label.ndim not in (1, 2) or self.label.shape[-1] != seen.head.classes:
            raise LabelError(
                f"expected a label of {seen.head.classes} entries, got shape "
                f"{tuple(self.label.shape)}; give one soft label, or (B, {seen.head.classes}) for "
                "a share of B samples"
            )
        return LabelStart(self.label.double(), free=False)
