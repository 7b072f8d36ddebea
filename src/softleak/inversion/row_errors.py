"""This module predicts the error of a solution of rows: from misfits, and from what no row sees."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from softleak.inversion.rows import Rows


def with_unseen(variance: Tensor, rows: Rows, lifted: Tensor) -> Tensor:
    """Return variances (n,) that count what a lifted diagonal (n,) hides.

    A direction that only the lift holds may be as wrong as the input is large.
    """
    return variance * (1 + rows.prior_size**2 * lifted)


def held_by_rows(
    inverse: Callable[[Tensor], Tensor], ridge: Tensor, draws: Tensor, steps: int, largest: float
) -> bool:
    """Tell whether the ridge's part in every direction is smaller than ``largest``.

    The largest part is at most the sum of all, which the draws tell to a fifth at worst. Only if
    that is not small enough, it is computed.

    Args:
        inverse: The product of ``N⁻¹`` with a vector (n,).
        ridge: What was added to the diagonal of N (n,).
        draws: Draws (D, n) with the covariance ``N⁻¹``, or its standard errors (1, n).
        steps: How many steps of power iteration.
        largest: The part that the ridge must not reach.
    """
    if float((draws.square().mean(0) * ridge).sum()) < largest / 2:
        return True
    return ridge_part(inverse, ridge, draws[0], steps) < largest


def ridge_part(
    inverse: Callable[[Tensor], Tensor], ridge: Tensor, start: Tensor, steps: int
) -> float:
    """Return the ridge's part in the precision of the direction that rows say least of.

    This is the largest eigenvalue of ``R^½ N⁻¹ R^½`` with the ridge R, by power iteration. It is
    one if the rows say nothing of that direction.

    Args:
        inverse: The product of ``N⁻¹`` with a vector (n,).
        ridge: What was added to the diagonal of N (n,).
        start: A vector (n,) in which such directions stand out.
        steps: How many steps of power iteration.
    """
    root = ridge.sqrt()
    v, held = start * root, 0.0
    for _ in range(steps):
        v = v / v.norm()
        product = root * inverse(root * v)
        held, v = float(v @ product), product
    return held


def misfit(rows: Rows, x: Tensor, smallest_factor: float, spare_rows: int) -> tuple[float, float]:
    """Return the root mean square of the rows' misfits, and the factor it puts on all errors.

    Args:
        rows: The rows.
        x: Their solution (n,).
        smallest_factor: The smallest factor that small misfits may give.
        spare_rows: With fewer rows beyond the unknowns than this, the factor is one or more.
    """
    spare = rows.count - x.numel()
    squares = max(rows.squared_misfit(x), 0.0)  # rounding may make the sum negative
    residual = (squares / max(spare, rows.count / 10, 1)) ** 0.5
    smallest = smallest_factor if spare >= spare_rows else 1.0
    return residual, max(residual, smallest)
