"""The labels clients train on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

import softleak as sl

SMOOTHING = 0.1
TEMPERATURE = 4.0
SAME = 1e-9  # entries of a label that differ by less are the same

LabelKind = Callable[[Tensor, torch.Generator], Tensor]


def _uniform(generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.double))


def _mix(z: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """``k`` classes in random proportions."""
    weights = torch.rand(k, generator=generator, dtype=torch.double) + 0.05
    chosen = torch.randperm(len(z), generator=generator)[:k]
    label = torch.zeros(len(z), dtype=torch.double)
    label[chosen] = (weights / weights.sum())[: len(chosen)]
    return label / label.sum()


def _smooth(label: Tensor) -> Tensor:
    return (1 - SMOOTHING) * label + SMOOTHING / len(label)


def one_hot(z: Tensor, generator: torch.Generator) -> Tensor:
    """One class, certain."""
    return _mix(z, 1, generator)


def smoothed(z: Tensor, generator: torch.Generator) -> Tensor:
    """One class, smoothed by 0.1."""
    return _smooth(one_hot(z, generator))


def mixed(z: Tensor, generator: torch.Generator) -> Tensor:
    """Mixup of two classes."""
    return _mix(z, 2, generator)


def smoothed_mixed(z: Tensor, generator: torch.Generator) -> Tensor:
    """Smoothed mixup of two classes."""
    return _smooth(mixed(z, generator))


def three_mixed(z: Tensor, generator: torch.Generator) -> Tensor:
    """Three classes in random proportions."""
    return _mix(z, 3, generator)


def dirichlet(z: Tensor, generator: torch.Generator) -> Tensor:
    """Any point of the simplex, all alike."""
    drawn = -torch.rand(len(z), generator=generator, dtype=torch.double).log()
    return drawn / drawn.sum()


def own_prediction(z: Tensor, _: torch.Generator) -> Tensor:
    """The model's own prediction: a student that is its own teacher."""
    return z.softmax(-1)


def nearly_own(z: Tensor, generator: torch.Generator) -> Tensor:
    """A label hardly away from the model's own prediction."""
    size = 10 ** _uniform(generator, -6, -2)
    return (1 - size) * z.softmax(-1) + size * dirichlet(z, generator)


def distilled(z: Tensor, generator: torch.Generator) -> Tensor:
    """A teacher's prediction at a temperature of four."""
    other = z + (z.std() + 1) * torch.randn(len(z), generator=generator, dtype=torch.double)
    return (other / TEMPERATURE).softmax(-1)


def flat(z: Tensor, _: torch.Generator) -> Tensor:
    """The uniform label."""
    return torch.full_like(z, 1 / len(z))


LABELS: Mapping[str, LabelKind] = {
    "one-hot": one_hot, "smoothed": smoothed, "mixed": mixed, "smoothed mix": smoothed_mixed,
    "three classes": three_mixed, "Dirichlet": dirichlet, "own prediction": own_prediction,
    "nearly own prediction": nearly_own, "distilled": distilled, "uniform": flat,
}  # fmt: skip
# The family a caller who knows the kind would name; None where there is none.
FAMILIES: Mapping[str, sl.Family] = {
    "one-hot": sl.OneHot(), "smoothed": sl.Smoothed(), "mixed": sl.Mixed(2),
    "smoothed mix": sl.SmoothedMixed(2), "three classes": sl.Mixed(3), "uniform": sl.Smoothed(),
    "Dirichlet": sl.AnyLabel(), "distilled": sl.AnyLabel(),
}  # fmt: skip


def is_simple(y: Tensor) -> bool:
    """Whether a label is one-hot, smoothed, a mix of two classes or a smoothed mix of two.

    With three classes every label is a smoothed mix of two, which then says nothing.
    """
    families: list[sl.Family] = [sl.OneHot(), sl.Smoothed(), sl.Mixed(2)]
    if len(y) > 3:
        families.append(sl.SmoothedMixed(2))
    return any(float((family.project(y) - y).abs().max()) < SAME for family in families)
