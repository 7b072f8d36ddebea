"""The input that meets a convolution's rows best, and how far off it is expected to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.inversion.independent import near
from softleak.inversion.least_squares import Factored, descend
from softleak.inversion.rows import Rows

VAGUE = 0.5  # of a direction: if a ridge holds as much, rows do not tell
LEAST = 0.1  # of the errors expected: what misfits may reduce them to
SPARE = 32  # rows beyond the unknowns from which their misfits tell how large errors really are
LIFT = 1e-6  # of the diagonal: what single precision needs to be added
STEPS = 40  # towards the solution of the rows themselves, at most
POWERS = 8  # steps towards the direction that rows say least of
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
    variance = found.error.square()
    held = _held(factored.inverse, rows.reach**-2 + factored.lifted, found.error)
    determined = found.determined and held < VAGUE
    error = _unseen(variance, rows, factored.lifted).sqrt() * factor
    precision = factored.normal / factor**2
    return Solved(found.value, error, found.condition, residual, factor, determined, precision)


def quick(rows: Rows) -> Solved:
    """With independent errors: conjugate gradients on rows whose inverse is nearly known."""
    zero = torch.zeros(rows.shape, dtype=rows.z.dtype, device=rows.z.device).flatten()
    diagonal = rows.diagonal()
    lifted = LIFT * diagonal.view(rows.shape[0], -1).amax(0)
    ridge = rows.reach**-2 + lifted
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
    draws = inverse.draws()
    variance = draws.square().mean(0)
    residual, factor = _misfit(rows, x)
    channels = rows.shape[0]
    determined = determined and _held(inverse.solve, ridge.repeat(channels), draws[0]) < VAGUE
    error = variance if determined else _unseen(variance, rows, lifted.repeat(channels))
    return Solved(
        x, error.sqrt() * factor, float((variance * diagonal).max()), residual, factor, determined
    )


def _unseen(variance: Tensor, rows: Rows, lifted: Tensor) -> Tensor:
    """A direction that only what was added (n,) holds may be as wrong as the input is large."""
    return variance * (1 + rows.reach**2 * lifted)


def _held(inverse: Callable[[Tensor], Tensor], ridge: Tensor, start: Tensor) -> float:
    """What the ridge (n,) holds of the direction rows say least of: all of it if they say nothing.

    By power iteration, from a vector in which such directions stand out.
    """
    root = ridge.sqrt()
    v, held = start * root, 0.0
    for _ in range(POWERS):
        v = v / v.norm()
        again = root * inverse(root * v)
        held, v = float(v @ again), again
    return held


def _misfit(rows: Rows, x: Tensor) -> tuple[float, float]:
    """The root mean square of the rows' misfits, and what it says of the size of errors."""
    spare = rows.count - x.numel()
    squares = max(rows.squares(x), 0.0)  # which rounding may make less
    residual = (squares / max(spare, rows.count / 10, 1)) ** 0.5
    return residual, max(residual, LEAST if spare >= SPARE else 1.0)
