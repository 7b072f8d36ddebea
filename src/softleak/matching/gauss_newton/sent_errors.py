"""This module measures how far the entries of a gradient that is sent are from the true ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.share import GradientShare


@dataclass(frozen=True)
class ErrorSettings:
    """These settings say which errors count as none, and which as equal.

    Attributes:
        unchanged: an entry is unchanged if its error is no more than this part of its gradient's
            size.
        least: the smallest error that an entry is taken to have, relative to the size of its
            gradient. Smaller ones make no difference to whether an image is recognisable, and would
            ask for float64.
        alike: errors whose ratio is at most this count as equal.
    """

    unchanged: float = 1e-6
    least: float = 1e-2
    alike: float = 1.2


ERROR_SETTINGS = ErrorSettings()


@dataclass(frozen=True, eq=False)
class SentErrors:
    """This measures the errors of some entries of a gradient.

    Attributes:
        rows: which entries of each gradient are measured, by name.
        settings: what counts as no error, and as equal.
    """

    rows: Mapping[str, Tensor]
    settings: ErrorSettings = ERROR_SETTINGS

    def __call__(self, true: GradientShare, sent: GradientShare) -> Tensor:
        """Return the error (R,) of every entry; infinite for one that is not sent.

        A factor on the whole of what is sent is no error.

        Args:
            true: the gradient of the sample.
            sent: what is sent instead of it.
        """
        every = list(self._by_tensor(true, sent, _factor(true, sent)))
        errors, counts = (torch.cat(list(part)) for part in zip(*every, strict=True))
        return _pooled(errors, counts, self.settings.alike)

    def _by_tensor(
        self, true: GradientShare, sent: GradientShare, size: float
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the error of each gradient's entries, and how many entries have the same."""
        for name, rows in self.rows.items():
            own = true[name].double().reshape(-1)
            if name not in sent:
                yield torch.full((len(rows),), math.inf).double(), torch.ones(len(rows)).double()
                continue
            came = sent[name].double().reshape(-1)
            off, usual = came / size - own, float(own.square().mean().sqrt())
            least = max(self.settings.least * usual, torch.finfo(torch.float32).tiny)
            missing, exact = came == 0, off.abs() <= self.settings.unchanged * usual
            errors, counts = torch.full_like(own, least), torch.ones_like(own)
            for group in (missing, ~missing & ~exact):
                if group.any():
                    errors[group] = off[group].square().mean().sqrt().clamp(min=least)
                    counts[group] = float(group.sum())
            yield errors[rows], counts[rows]


def _factor(true: GradientShare, sent: GradientShare) -> float:
    """Return the factor on the whole of what is sent, as the entries that are not zero tell."""
    along = whole = 0.0
    for name, g in sent.items():
        own, came = true[name].double(), g.double()
        along += float((came * own).sum())
        whole += float(own[came != 0].square().sum())
    return along / whole if along > 0 and whole > 0 else 1.0


def _pooled(errors: Tensor, counts: Tensor, alike: float) -> Tensor:
    """Return errors of which those that are nearly equal are equal, so that sums are quick."""
    values, groups = torch.unique(errors, return_inverse=True)
    own = torch.zeros_like(values).scatter_(0, groups, counts)  # equal errors have equal counts
    pooled: Tensor = values.clone()
    begin = 0
    for end in range(1, len(values) + 1):
        if end == len(values) or not values[end] <= alike * values[begin]:
            part = slice(begin, end)
            if bool(values[begin].isfinite()):
                pooled[part] = (values[part].square() * own[part]).sum().div(own[part].sum()).sqrt()
            begin = end
    return pooled[groups]
