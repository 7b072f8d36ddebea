"""The input that meets a convolution's rows best, and how far off it is expected to be."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.inversion.independent import near
from softleak.inversion.least_squares import Factored, descend
from softleak.inversion.rows import Rows

VAGUE = 0.5  # of the reach: an error so large says that no row tells
SPARE = 32  # rows beyond the unknowns from which their misfits tell how large errors really are
LIFT = 1e-6  # of the diagonal: what single precision needs to be added
STEPS = 40  # towards the solution of the rows themselves, at most
STARTS = 3  # of these steps, against what rounding adds up to
ENOUGH = 1.0  # of the unknowns' squared errors together: a sum that need not become smaller


@dataclass(frozen=True, eq=False)
class Solved:
    """The unknowns and their standard errors (n,).

    ``factor`` is what the rows' misfits say of the size of all errors; ``precision`` (n, n) is the
    inverse covariance, if it was needed.
    """

    value: Tensor
    error: Tensor
    condition: float
    residual: float
    factor: float
    determined: bool
    precision: Tensor | None = None


def thorough(rows: Rows) -> Solved:
    """With errors that go together, and a δ that follows the output."""
    around = rows.rough()
    factored = Factored.of(rows.normal(around))
    found = factored.solve(lambda x: rows.slope(x, around), around)
    residual, factor = _misfit(rows, found.value)
    determined = found.determined and bool((found.error < VAGUE * rows.reach).all())
    precision = factored.normal / factor**2
    return Solved(
        found.value, found.error * factor, found.condition, residual, factor, determined, precision
    )


def quick(rows: Rows) -> Solved:
    """With independent errors: conjugate gradients on rows whose inverse is nearly known."""
    zero = torch.zeros(rows.shape, dtype=rows.z.dtype, device=rows.z.device).flatten()
    diagonal = rows.diagonal()
    ridge = rows.reach**-2 + LIFT * diagonal.view(rows.shape[0], -1).amax(0)
    inverse = near(rows, ridge)
    if inverse is None:
        return Solved(zero, zero + torch.inf, torch.inf, 0.0, 1.0, False)
    x, first, determined = zero, rows.slope(zero, zero), False
    for _ in range(STARTS):
        step = descend(
            lambda v: first - rows.slope(v, zero), rows.slope(x, zero), inverse.solve, STEPS, ENOUGH
        )
        if not step.any():
            determined = True
            break
        x = x + step
    error = inverse.draws().square().mean(0).sqrt()
    held = error.view(rows.shape[0], -1) * ridge.sqrt()  # by the ridge rather than by rows
    residual, factor = _misfit(rows, x)
    return Solved(
        x, error * factor, float((error.square() * diagonal).max()), residual, factor,
        determined and bool((held < VAGUE).all()),
    )  # fmt: skip


def _misfit(rows: Rows, x: Tensor) -> tuple[float, float]:
    """The root mean square of the rows' misfits, and what it says of the size of errors."""
    spare = rows.count - x.numel()
    residual = (rows.squares(x) / max(spare, rows.count / 10, 1)) ** 0.5
    return residual, residual if spare >= SPARE else max(1.0, residual)
