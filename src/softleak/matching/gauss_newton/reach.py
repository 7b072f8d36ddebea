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
from softleak.matching.gauss_newton.model import ImagePrior, NewtonModel
from softleak.numerics.gram import GramSettings, WeightedGrams, inverse_trace


@dataclass(frozen=True)
class ErrorSettings:
    """Which errors count as none, and which as equal.

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
    """Measure the errors of some entries of a gradient.

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


@dataclass(frozen=True)
class ReachSettings:
    """Settings that bound the work, and say what is assumed.

    Attributes:
        unknowns: the largest number of entries of an input.
        memory: the bytes that the Jacobian and its making may take. Of large layers as many
            gradients are drawn as fit, each of which then counts as several. Gram matrices may
            take a quarter of it afterwards.
        errors: which errors count as none, and which as equal.
        prior: what an attacker knows of images.
    """

    unknowns: int = 4096
    memory: int = 1 << 30
    errors: ErrorSettings = field(default_factory=ErrorSettings)
    prior: ImagePrior = field(default_factory=ImagePrior)


REACH_SETTINGS = ReachSettings()


@dataclass(frozen=True, eq=False)
class NoiseReach:
    """How good an image may be that is estimated from a changed gradient.

    Attributes:
        jacobian: how the gradients change with the pixels, (n, R).
        rows: which entries of each gradient the R columns are, by name.
        counts: how many entries each of the R columns stands for.
        precision: the inverse covariance (n, n) of pixels beforehand.
        settings: what is assumed.
        known: the weights (R,) of entries that were asked for, and the PSNR for each.
    """

    jacobian: Tensor
    rows: dict[str, Tensor]
    counts: Tensor
    precision: Tensor
    settings: ReachSettings = REACH_SETTINGS
    known: list[tuple[Tensor, float]] = field(default_factory=list, repr=False)

    @classmethod
    def of(
        cls, subject: Subject, share: GradientShare, x: Tensor, y: Tensor, scale: Tensor,
        settings: ReachSettings = REACH_SETTINGS,
    ) -> NoiseReach:  # fmt: skip
        """Linearise the gradient of one sample.

        Args:
            subject: the model made ready.
            share: the gradient of the sample.
            x: the input of the sample.
            y: its soft label (C,).
            scale: the size of a pixel of range one is that of the input times this.
            settings: how much work there may be.

        Raises:
            ModelError: if the input has more entries than the settings allow.
        """
        if x.numel() > settings.unknowns:
            raise ModelError(f"expected an input of at most {settings.unknowns} entries")
        names = tuple(name for name in subject.parameters if name in share)
        model = NewtonModel.of(subject, names, (1, *x.shape), settings.memory)
        rows, counts = _drawn(model, names)
        z = model.quick.pack(x[None], y[None])
        weight = torch.ones(sum(model.quick.sizes.values()))
        places = torch.cat([own + begin for own, begin in rows.values()])
        found = model.products(torch.float32).jacobian(z, weight, places)[: x.numel()]
        found /= scale.expand(x.shape).reshape(-1, 1).to(found)
        return cls(
            found, {name: own for name, (own, _) in rows.items()}, counts,
            settings.prior.precision(tuple(x.shape)), settings,
        )  # fmt: skip

    def psnr(self, true: GradientShare, sent: GradientShare) -> float:
        """Return the PSNR in dB that an attacker may reach.

        Args:
            true: the gradient of the sample.
            sent: what is sent instead of it.
        """
        return self._psnr_with(self._weight(true, sent))

    def exceeds(self, true: GradientShare, sent: GradientShare, level: float) -> bool:
        """Return whether an attacker may reach a PSNR of ``level`` dB or more.

        The PSNR grows with every weight. Where no entry weighs more than in a case that is known
        not to reach the level, or none less than in one that does, nothing is computed.

        Args:
            true: the gradient of the sample.
            sent: what is sent instead of it.
            level: the PSNR in dB.
        """
        weight = self._weight(true, sent)
        for other, psnr in self.known:
            if bool((other <= weight if psnr >= level else other >= weight).all()):
                return psnr >= level
        return self._psnr_with(weight) >= level

    def _weight(self, true: GradientShare, sent: GradientShare) -> Tensor:
        """Return what each entry counts for, (R,): the inverse of its squared error."""
        return self.counts / self._errors(true, sent).square()

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
        return WeightedGrams(self.jacobian, sizes, GramSettings(self.settings.memory // 4))

    @cached_property
    def _errors(self) -> SentErrors:
        return SentErrors(self.rows, self.settings.errors)


def _drawn(
    model: NewtonModel, names: tuple[str, ...]
) -> tuple[dict[str, tuple[Tensor, int]], Tensor]:
    """Return which entries of each gradient fit in memory, and for how many each stands."""
    kept, found, counts, begin = model.kept(), {}, [], 0
    for name in names:
        size = model.quick.sizes[name]
        own = torch.arange(size) if kept is None else _within(kept, begin, size)
        found[name] = (own, begin)
        counts.append(torch.full((len(own),), size / max(len(own), 1), dtype=torch.double))
        begin += size
    return found, torch.cat(counts)


def _within(kept: Tensor, begin: int, size: int) -> Tensor:
    return kept[(kept >= begin) & (kept < begin + size)] - begin
