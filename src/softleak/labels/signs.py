"""A gradient whose entries all have one size: what Adam's first step and signSGD send."""

from __future__ import annotations

from torch import Tensor

ALIKE = 0.02  # relative: entries this close to the median are of one size
MOST = 0.9  # of the entries that are not zero
FEWEST = 12  # entries that can show a pattern


def is_sign_pattern(gradient: Tensor) -> bool:
    """Whether nearly all entries that are not zero have the same absolute value, and none more.

    One step of Adam is ``g / (|g| + ε)`` times the learning rate: entries near ε are smaller.
    """
    sizes = gradient.detach().double().abs().flatten()
    sizes = sizes[sizes > 0]
    if len(sizes) < FEWEST:
        return False
    ratios = sizes / sizes.median()
    return float(ratios.max()) < 1 + ALIKE and float((ratios > 1 - ALIKE).double().mean()) >= MOST
