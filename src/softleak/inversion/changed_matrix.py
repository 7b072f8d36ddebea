"""This module tells how much less a changed matrix says than the one that was factored."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from softleak.inversion.least_squares import reproducible_noise

Apply = Callable[[Tensor], Tensor]


def least_ratio(product: Apply, inverse: Apply, diagonal: Tensor, steps: int) -> float:
    """Return about the smallest eigenvalue of ``N⁻¹ M``, by Lanczos's method.

    If it is ``c``, then ``M ≥ c N``, so that no variance in ``M⁻¹`` is larger than ``1/c`` times
    that in ``N⁻¹``. The method finds an eigenvalue that stands apart from the others in few steps,
    and comes from above.

    Args:
        product: The product of the changed matrix M with a vector (n,).
        inverse: The product of ``N⁻¹`` with a vector (n,).
        diagonal: The diagonal (n,) of N, which sizes a random start.
        steps: The number of products.
    """
    left = reproducible_noise((len(diagonal), 1), diagonal)[:, 0] * diagonal.sqrt()
    before = torch.zeros_like(left)
    own, beside = [], []
    for _ in range(min(steps, len(diagonal))):
        turned = inverse(left)
        length = (turned @ left).clamp_min(0.0).sqrt()
        if not float(length) > 0:  # nothing is left, or a number is not finite
            break
        q, p = turned / length, left / length
        image = product(q)
        own.append(q @ image)
        beside.append(length)
        left = image - own[-1] * p - length * before
        before = p
    side = torch.stack(beside)[1:] if beside else diagonal[:0]
    matrix = torch.stack(own).diag() + side.diag(1) + side.diag(-1) if own else torch.zeros(1, 1)
    return float(torch.linalg.eigvalsh(matrix)[0]) if bool(matrix.isfinite().all()) else 0.0
