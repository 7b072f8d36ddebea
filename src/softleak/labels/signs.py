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
    if _spread_out(sizes):
        return False
    sizes = sizes[sizes > 0]
    large = sizes[sizes > sizes.max() / 2] if len(sizes) else sizes
    if len(large) < SIGN_PATTERN.fewest:
        return False
    ratios = sizes / large.median()
    alike = (ratios - 1).abs() < SIGN_PATTERN.alike
    nothing = ratios < SIGN_PATTERN.alike
    none_larger = float(ratios.max()) < 1 + SIGN_PATTERN.alike
    return none_larger and float((alike | nothing).double().mean()) >= SIGN_PATTERN.most


def _spread_out(sizes: Tensor) -> bool:
    """Return whether so many entries lie between zero and the largest that no pattern is left.

    It is a necessary condition without a median, at which nearly all gradients end.
    """
    if not sizes.numel():
        return False
    largest, slack = float(sizes.max()), SIGN_PATTERN.alike
    low, high = slack * largest, (1 - slack) / (1 + slack) * largest
    between = int(((sizes > low) & (sizes < high)).sum())
    return between > (1 - SIGN_PATTERN.most) * sizes.numel()
