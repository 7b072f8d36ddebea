"""A gradient whose entries all have one size: what Adam's first step and signSGD send."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SignPattern:
    """These settings recognise a gradient of which only signs are left."""

    alike: float = 0.02  # relative: entries this close to the median are of one size
    most: float = 0.9  # the part of entries beside zero that has this size
    fewest: int = 12  # entries that can show a pattern


SIGN_PATTERN = SignPattern()


def is_sign_pattern(gradient: Tensor) -> bool:
    """Return whether nearly all entries have one size or are next to zero, and none is larger.

    A feature that is zero leaves entries of zero. With the decoupled weight decay of AdamW they are
    small numbers instead.
    """
    sizes = gradient.detach().double().abs().flatten()
    sizes = sizes[sizes > 0]
    large = sizes[sizes > sizes.max() / 2] if len(sizes) else sizes
    if len(large) < SIGN_PATTERN.fewest:
        return False
    ratios = sizes / large.median()
    alike = (ratios - 1).abs() < SIGN_PATTERN.alike
    nothing = ratios < SIGN_PATTERN.alike
    none_larger = float(ratios.max()) < 1 + SIGN_PATTERN.alike
    return none_larger and float((alike | nothing).double().mean()) >= SIGN_PATTERN.most
