"""Whether the model makes of an input what the share shows of it.

An input that was computed backwards from gradients has to give, forwards, the feature that the
head's gradient shows; and where the share carries noise, a gradient that differs from the share by
no more than that. How far it may be off is not guessed: the model is run on the input moved by its
own predicted error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.core.client import Client
from softleak.core.errors import SoftleakError
from softleak.core.factors import Factors
from softleak.core.forward import forward_one
from softleak.core.results import Recovery, Status
from softleak.core.share import GradientShare
from softleak.numerics.recorder import recorded_inputs

AGREES = 1e-3  # relative: two features that are this close are one, whatever is predicted
ERRORS = 8.0  # predicted errors that a feature may be off
LOOSEST = 0.3  # relative: a feature that may be off by more says nothing
LEAST_ENTRIES = 3  # of a feature whose direction can tell anything
DRAWS, SEED = 4, 0  # inputs moved by their error
CHANCE = 4.0  # standard deviations by which a sum of squares of noise may be off
SPREAD = 2.0  # predicted errors that an input behind noise may be off


def feature_of(model: nn.Module, head: str, x: Tensor) -> Tensor | None:
    """Return the feature (I,) that the model makes of an input, in float64."""
    made = x.to(next(model.parameters()))
    try:
        with torch.no_grad(), recorded_inputs(model, head) as entered:
            forward_one(model, made)
    except SoftleakError:
        return None
    last = entered[head][-1] if entered[head] else made
    return last.flatten().double() if bool(last.isfinite().all()) else None


@dataclass(frozen=True, eq=False)
class Shown:
    """The feature of one sample, as the head's gradient shows it.

    Attributes:
        value: the feature (I,); its direction alone where its size is not known.
        error: its relative error.
        whole: whether its size is known.
    """

    value: Tensor
    error: float
    whole: bool

    @classmethod
    def of(cls, recovery: Recovery, factors: Factors) -> Shown | None:
        """Return what a share shows of the feature; None if that is too little to tell anything."""
        sure = recovery.status in (Status.UNIQUE, Status.PROBABLE)
        if sure and recovery.feature is not None and recovery.feature_error <= LOOSEST / 2:
            return cls(recovery.feature.double(), recovery.feature_error, True)
        direction, error = factors.v[0], float(factors.residual[0]) + factors.feature_error(0)
        if bool(factors.zero) or len(direction) < LEAST_ENTRIES or not error <= LOOSEST / 2:
            return None
        return cls(direction, error, False)

    def off(self, feature: Tensor | None) -> float:
        """Return how far a feature is from it, relative to its size, and one at most."""
        if feature is None or feature.shape != self.value.shape or not float(feature.norm()) > 0:
            return 1.0
        own = float(self.value.norm())
        if self.whole:
            return min(float((feature - self.value).norm()) / own, 1.0)
        along = float(feature @ self.value) / float(feature.norm()) / own
        return math.sqrt(max(1 - along**2, 0.0))

    def tolerance(self, make: Callable[[Tensor], Tensor | None], x: Tensor, error: Tensor) -> float:
        """Return how far the feature of ``x`` may be off, by its error and by the feature's own.

        It is infinite where a wrong input could not be told by it.
        """
        here, moved = make(x), [make(one) for one in _moved(x, error)]
        known = [one for one in moved if one is not None]
        if here is None or len(known) < DRAWS:
            return math.inf
        apart = torch.stack(known) - here
        spread = float(apart.square().sum(1).mean().sqrt() / here.norm().clamp_min(1e-300))
        allowed = AGREES + ERRORS * (spread + self.error)
        return allowed if allowed <= LOOSEST else math.inf


def _moved(x: Tensor, error: Tensor) -> list[Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.randn(DRAWS, *x.shape, generator=generator, dtype=torch.double).to(x.device)
    return list(x + error * drawn)


def feature_agrees(
    model: nn.Module, head: str, x: Tensor, error: Tensor, shown: Shown | None
) -> bool:
    """Return whether the feature of an input is the one shown, as far as anything can be told."""
    if shown is None:
        return True

    def make(one: Tensor) -> Tensor | None:
        return feature_of(model, head, one)

    off = shown.off(make(x))
    return off <= AGREES or off <= shown.tolerance(make, x, error)


def noise_explains(
    model: nn.Module, share: GradientShare, x: Tensor, error: Tensor, label: Tensor, noise: float
) -> bool:
    """Return whether noise, and the input's error, explain what the client's run leaves of a share.

    A sum of squares of noise is known to a few parts in the root of their number.
    """
    y = label.detach().clamp_min(0)

    def sent(one: Tensor) -> dict[str, Tensor]:
        made = Client().share(model, one.to(next(model.parameters())), y / y.sum())
        return {name: g.double() for name, g in made.items() if name in share}

    here = sent(x)
    count = sum(g.numel() for g in here.values())
    left = sum(float((share[n].double() - g).square().sum()) for n, g in here.items())
    spread = 0.0
    for one in _moved(x, error):
        there = sent(one)
        spread += sum(float((there[n] - g).square().sum()) for n, g in here.items()) / DRAWS
    drawn = noise**2 * count * (1.0 + CHANCE * math.sqrt(2 / count))
    return left <= drawn + SPREAD**2 * spread
