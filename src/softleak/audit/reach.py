"""Estimate how good an image an attacker may get behind a defence.

The gradient is taken to be linear in the image around the true one, and what a defence changes to
be independent noise. The best estimate of an image then has a known error, whoever makes it: the
trace of ``(Jᵀ J / σ² + P)⁻¹``, where ``J`` is the Jacobian of the gradient and ``P`` says what is
known of images beforehand. The estimate is no proof, because a gradient is not linear. It takes a
moment, where matching gradients takes minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from softleak.core.errors import ModelError
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.matching.gauss_newton.metric import image_precision
from softleak.matching.gauss_newton.products import BatchModel, NewtonModel
from softleak.numerics.least_squares import WeightedGrams, inverse_trace

UNCHANGED = 1e-6  # an error of no more than this part of its gradient's size is none
# The smallest error that an entry is taken to have, relative to the size of its gradient. Smaller
# ones make no difference to whether an image is recognisable, and would ask for float64.
LEAST_ERROR = 1e-2
ALIKE = 1.2  # errors whose ratio is at most this count as equal
MOST_UNKNOWNS = 4096  # entries of an input
MEMORY = 1 << 30  # bytes of the Jacobian and its making; Gram matrices take a quarter afterwards


def sent_errors(rows: Mapping[str, Tensor], true: GradientShare, sent: GradientShare) -> Tensor:
    """Return the error (R,) of some entries of a gradient; infinite for one that is not sent.

    A factor on the whole of what is sent is no error. ``rows`` says which entries of each gradient
    are measured, by name.
    """
    every = list(_errors_by_tensor(rows, true, sent, _factor(true, sent)))
    errors, counts = (torch.cat(list(part)) for part in zip(*every, strict=True))
    return _pooled(errors, counts)


def _errors_by_tensor(
    rows: Mapping[str, Tensor], true: GradientShare, sent: GradientShare, size: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the error of each gradient's entries, and how many entries have the same."""
    for name, chosen in rows.items():
        own = true[name].double().reshape(-1)
        if name not in sent:
            yield torch.full((len(chosen),), math.inf).double(), torch.ones(len(chosen)).double()
            continue
        came = sent[name].double().reshape(-1)
        off, usual = came / size - own, float(own.square().mean().sqrt())
        least = max(LEAST_ERROR * usual, torch.finfo(torch.float32).tiny)
        missing, exact = came == 0, off.abs() <= UNCHANGED * usual
        errors, counts = torch.full_like(own, least), torch.ones_like(own)
        for group in (missing, ~missing & ~exact):
            if group.any():
                errors[group] = off[group].square().mean().sqrt().clamp(min=least)
                counts[group] = float(group.sum())
        yield errors[chosen], counts[chosen]


def _factor(true: GradientShare, sent: GradientShare) -> float:
    """Return the factor on the whole of what is sent, as the entries that are not zero tell."""
    along = whole = 0.0
    for name, g in sent.items():
        own, came = true[name].double(), g.double()
        along += float((came * own).sum())
        whole += float(own[came != 0].square().sum())
    return along / whole if along > 0 and whole > 0 else 1.0


def _pooled(errors: Tensor, counts: Tensor) -> Tensor:
    """Return errors of which those that are nearly equal are equal, so that sums are quick."""
    values, groups = torch.unique(errors, return_inverse=True)
    own = torch.zeros_like(values).scatter_(0, groups, counts)  # equal errors have equal counts
    pooled: Tensor = values.clone()
    begin = 0
    for end in range(1, len(values) + 1):
        if end == len(values) or not values[end] <= ALIKE * values[begin]:
            part = slice(begin, end)
            if bool(values[begin].isfinite()):
                pooled[part] = (values[part].square() * own[part]).sum().div(own[part].sum()).sqrt()
            begin = end
    return pooled[groups]


@dataclass(frozen=True, eq=False)
class NoiseReach:
    """How good an image may be that is estimated from a changed gradient; old answers are known."""

    jacobian: Tensor  # how the gradients change with the pixels, (n, R)
    rows: dict[str, Tensor]  # which entries of each gradient the R columns are
    counts: Tensor  # how many entries each of the R columns stands for
    precision: Tensor  # the inverse covariance (n, n) of pixels beforehand
    memory: int = MEMORY  # the bytes that the Jacobian may take
    known: list[tuple[Tensor, float]] = field(default_factory=list, repr=False)

    @classmethod
    def of(
        cls, subject: Subject, share: GradientShare, x: Tensor, y: Tensor, scale: Tensor,
        memory: int = MEMORY, unknowns: int = MOST_UNKNOWNS,
    ) -> NoiseReach:  # fmt: skip
        """Linearise the gradient of one sample with input ``x`` and soft label ``y`` (C,).

        The size of a pixel of range one is that of the input times ``scale``. If the Jacobian of a
        large layer does not fit into ``memory`` bytes, some of its gradients are drawn, each of
        which counts as several. Raises ``ModelError`` of an input with more than ``unknowns``
        entries.
        """
        if x.numel() > unknowns:
            raise ModelError(f"expected an input of at most {unknowns} entries")
        names = tuple(name for name in subject.parameters if name in share)
        model = NewtonModel.of(subject, names, (1, *x.shape), memory)
        rows, counts = _drawn(model, names)
        z = model.quick.pack(x[None], y[None])
        weight = torch.ones(sum(model.quick.sizes.values()))
        places = torch.cat([own + begin for own, begin in rows.values()])
        found = model.products(torch.float32).jacobian(z, weight, places)[: x.numel()]
        found /= scale.expand(x.shape).reshape(-1, 1).to(found)
        return cls(
            found, {name: own for name, (own, _) in rows.items()}, counts,
            image_precision(tuple(x.shape)), memory,
        )  # fmt: skip

    def psnr(self, true: GradientShare, sent: GradientShare) -> float:
        """Return the PSNR in dB that an attacker may reach."""
        return self._psnr_with(self._weight(true, sent))

    def exceeds(self, true: GradientShare, sent: GradientShare, level: float) -> bool:
        """Return whether an attacker may reach a PSNR of ``level`` dB or more."""
        weight = self._weight(true, sent)
        for other, psnr in self.known:
            if bool((other <= weight if psnr >= level else other >= weight).all()):
                return psnr >= level
        return self._psnr_with(weight) >= level

    def _weight(self, true: GradientShare, sent: GradientShare) -> Tensor:
        """Return what each entry counts for, (R,): the inverse of its squared error."""
        return self.counts / sent_errors(self.rows, true, sent).square()

    def _psnr_with(self, weight: Tensor) -> float:
        normal = self._normal(weight)
        rounding = torch.finfo(torch.float32).eps * float(normal.diagonal().mean())
        normal += self.precision
        found = -10 * math.log10(inverse_trace(normal, rounding) / len(normal))
        self.known.append((weight, found))
        return found

    @cached_property
    def _normal(self) -> WeightedGrams:
        sizes = tuple(len(own) for own in self.rows.values())
        return WeightedGrams(self.jacobian, sizes, self.memory // 4)


def _drawn(
    model: BatchModel, names: tuple[str, ...]
) -> tuple[dict[str, tuple[Tensor, int]], Tensor]:
    """Return which entries of each gradient fit in memory, and for how many each stands."""
    kept, found, counts, begin = model.kept(), {}, [], 0
    for name in names:
        size = model.quick.sizes[name]
        every = torch.arange(size)
        own = every if kept is None else every[torch.isin(every + begin, kept)]
        found[name] = (own, begin)
        counts.append(torch.full((len(own),), size / max(len(own), 1), dtype=torch.double))
        begin += size
    return found, torch.cat(counts)
