"""What a client may do to a share before it sends it: clip, prune, round, add noise, withhold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from softleak.core.errors import OptionError
from softleak.core.share import GradientShare


@runtime_checkable
class Defense(Protocol):
    """A defence takes a share and returns what is sent instead; the given one stays as it was."""

    def __call__(self, share: GradientShare) -> GradientShare:
        """Return what is sent instead of ``share``."""
        ...


def is_random(defense: Defense) -> bool:
    """Return whether a defence draws random numbers; one that does not say counts as if not."""
    return bool(getattr(defense, "random", False))


def as_known(defense: Defense, sent: GradientShare) -> GradientShare:
    """Return what was sent as its receiver sees it, who knows the defence and its setting.

    A defence with a method ``public`` says what it gives away about itself; any other is shown by
    the share itself, or by a noise that a receiver estimates.
    """
    shown: GradientShare = sent if not hasattr(defense, "public") else defense.public(sent)
    return shown


@dataclass(frozen=True)
class Composed:
    """One defence after the other: ``Composed((Clip(1.0), noise))``."""

    steps: tuple[Defense, ...]

    def __post_init__(self) -> None:
        wrong = [step for step in self.steps if isinstance(step, type) or not callable(step)]
        if wrong:
            raise OptionError(f"expected defences such as Clip(1.0), got {wrong[0]!r}")

    def __call__(self, share: GradientShare) -> GradientShare:
        for step in self.steps:
            share = step(share)
        return share

    @property
    def random(self) -> bool:
        return any(is_random(step) for step in self.steps)

    def public(self, sent: GradientShare) -> GradientShare:
        """Return what was sent, with all that each of the steps gives away."""
        for step in self.steps:
            sent = as_known(step, sent)
        return sent


def positive(size: float, what: str) -> None:
    """Raise ``OptionError`` unless ``size`` is a positive finite number."""
    if not isinstance(size, int | float) or not 0 < size < math.inf:
        raise OptionError(f"expected {what} as a positive number, got {size!r}")


TOUCHED = 1 - 1e-6  # of the limit: a share of this length was clipped


@dataclass(frozen=True)
class Clip:
    """The whole share, scaled down to an L2 norm of at most ``norm``."""

    norm: float

    def __post_init__(self) -> None:
        positive(self.norm, "the largest norm")

    def __call__(self, share: GradientShare) -> GradientShare:
        norm = share.norm()
        return share if norm <= self.norm else share.scaled(self.norm / norm)

    def public(self, sent: GradientShare) -> GradientShare:
        """Return the share at unknown scale if it is as long as the limit, and so was clipped."""
        clipped = sent.norm() >= TOUCHED * self.norm
        return replace(sent, scale="unknown") if clipped else sent


INT8 = 127  # the largest integer of eight bits, both signs alike


@dataclass(frozen=True)
class Prune:
    """The largest entries of each gradient, a part ``kept``; the others are zero."""

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
class OnKept:
    """Another defence, which leaves at zero what is zero, as nothing is sent of it."""

    step: Defense

    def __call__(self, share: GradientShare) -> GradientShare:
        sent = self.step(share)
        return sent.map(lambda name, g: torch.where(share[name] != 0, g, torch.zeros_like(g)))

    @property
    def random(self) -> bool:
        return is_random(self.step)

    def public(self, sent: GradientShare) -> GradientShare:
        """Return what was sent, with all that the other defence gives away."""
        return as_known(self.step, sent)


@dataclass(frozen=True)
class Cast:
    """Sixteen bits per entry: ``torch.float16`` or ``torch.bfloat16``."""

    dtype: torch.dtype

    def __post_init__(self) -> None:
        if self.dtype not in (torch.float16, torch.bfloat16):
            raise OptionError(f"expected torch.float16 or torch.bfloat16, got {self.dtype!r}")

    def __call__(self, share: GradientShare) -> GradientShare:
        return share.map(lambda _, g: g.to(self.dtype))


@dataclass(frozen=True)
class Int8:
    """Each gradient rounded to 255 levels between plus and minus its largest entry.

    The share holds the values the levels stand for. If ``declared``, it says how wide they are.
    """

    declared: bool = False

    def __call__(self, share: GradientShare) -> GradientShare:
        sent = share.map(lambda _, g: (g / s).round() * s if (s := _step(g)) > 0 else g)
        return self.public(sent) if self.declared else sent

    def public(self, sent: GradientShare) -> GradientShare:
        """Return the share with the error of its levels, whose width its largest entry tells."""
        known = {
            name: math.hypot(_step(g) / math.sqrt(12), sent.noise(name)) for name, g in sent.items()
        }
        return replace(sent, rounding=known)


@dataclass(frozen=True)
class Sign:
    """The sign of every entry: −1, 0 or 1."""

    def __call__(self, share: GradientShare) -> GradientShare:
        return share.map(lambda _, g: g.sign())


def _step(g: Tensor) -> float:
    return float(g.abs().max()) / INT8 if g.numel() else 0.0


Generator = torch.Generator | np.random.Generator
Source = Generator | int


@dataclass(frozen=True)
class _Noise:
    """Independent noise on every entry, as ``GaussianNoise`` describes it."""

    std: float
    source: Source
    declared: bool = False
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self.std, "the noise's standard deviation")

    def __call__(self, share: GradientShare) -> GradientShare:
        source = self.source
        generator = torch.Generator().manual_seed(source) if isinstance(source, int) else source
        noisy = share.map(lambda _, g: g + self._drawn(g, generator))
        return noisy.expecting(self.std) if self.declared else noisy

    def _drawn(self, like: Tensor, generator: Generator) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class GaussianNoise(_Noise):
    """Independent Gaussian noise of standard deviation ``std`` on every entry.

    ``source`` is a generator, for fresh noise on each share, or a seed, for the same noise on
    each. What is really sent wants NumPy's ``default_rng()``, seeded by the operating system: a
    seed of torch has 32 bits, which can be tried one by one. Only if ``declared`` does the share
    say how much noise it carries.
    """

    def _drawn(self, like: Tensor, generator: Generator) -> Tensor:
        if isinstance(generator, np.random.Generator):
            drawn = torch.from_numpy(np.asarray(generator.standard_normal(like.shape)))
        else:
            drawn = torch.randn(like.shape, generator=generator, dtype=_wide(like))
        return self.std * drawn.to(like)


@dataclass(frozen=True)
class LaplaceNoise(_Noise):
    """Independent Laplace noise of scale ``std/√2`` on every entry; see ``GaussianNoise``."""

    def _drawn(self, like: Tensor, generator: Generator) -> Tensor:
        if isinstance(generator, np.random.Generator):
            drawn = torch.from_numpy(np.asarray(generator.laplace(size=like.shape)))
        else:  # the difference of two exponential variables
            both = torch.empty(2, *like.shape, dtype=_wide(like))
            both.exponential_(generator=generator)
            drawn = both[0] - both[1]
        return self.std / math.sqrt(2) * drawn.to(like)


def _wide(like: Tensor) -> torch.dtype:
    return torch.promote_types(like.dtype, torch.float32)


@dataclass(frozen=True)
class PercentileNoise:
    """Gaussian noise in units of a percentile of the share's absolute entries.

    Entries that are zero do not count. So the noise of NVIDIA FLARE's study of gradient
    inversion is sized.
    """

    part: float
    percentile: float
    source: Source
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(self.part, "the noise's part of the percentile")
        if not 0 <= self.percentile <= 100:
            raise OptionError(f"expected a percentile from 0 to 100, got {self.percentile!r}")

    def __call__(self, share: GradientShare) -> GradientShare:
        entries = np.concatenate([g.double().abs().flatten().cpu().numpy() for g in share.values()])
        told = entries[entries > 0]
        size = float(np.percentile(told, self.percentile)) if told.size else 0.0
        return GaussianNoise(self.part * size, self.source)(share) if size else share


@dataclass(frozen=True)
class Withhold:
    """A share without some gradients, as a client sends it that freezes their parameters."""

    names: tuple[str, ...]

    def __call__(self, share: GradientShare) -> GradientShare:
        return share.without(*self.names)
