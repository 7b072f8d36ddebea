"""What is true of a share. Only the judge reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.adversary.labels import is_simple
from softleak import GradientShare


@dataclass(frozen=True, eq=False)
class Truth:
    """The labels behind a share, and what the library was not told.

    Attributes:
        labels: the label of every sample, as it was and as the client's number format holds it.
        readings: the labels of which a rescaled cross-entropy has exactly the same gradient, which
            no numbers can tell from the truth: the labels themselves, unless the client minimised
            another loss.
        samples: how many samples are behind the share.
        steps: how many steps were taken on them.
        undeclared: whether a scale, a sign or a loss was changed without telling the library.
        clean: whether the share is what the documentation asks for: one sample, cross-entropy,
            everything that was done to it declared.
        negative: whether the sign was changed, which an unknown scale does not cover.
        other_loss: whether the client minimised something that is no multiple of a cross-entropy
            of the label.
    """

    labels: tuple[Tensor, ...]
    readings: tuple[Tensor, ...] | None = None
    samples: int = 1
    steps: int = 1
    undeclared: bool = False
    clean: bool = False
    negative: bool = False
    other_loss: bool = False

    @property
    def simple(self) -> bool:
        """Whether a simple reading exists: a label of a simple family at some scale."""
        readings = self.labels if self.readings is None else self.readings
        return any(is_simple(label) for label in readings)


@dataclass(frozen=True, eq=False)
class Made:
    """A share and what is true of it."""

    share: GradientShare
    truth: Truth


def variants(labels: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Labels as they are, as a number format rounds them, and these divided by their sum."""
    found: list[Tensor] = []
    for label in labels:
        rounded = label.to(dtype).double()
        found += [label, rounded, rounded / rounded.sum()]
    return tuple(found)
