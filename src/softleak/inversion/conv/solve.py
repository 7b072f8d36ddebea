"""This module finds the input that meets a convolution's rows best, and predicts its error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.inversion.conv.rows import Rows, approximate_inverse, normal_matrix
from softleak.numerics.conjugate_gradients import conjugate_gradients
from softleak.numerics.least_squares import (
    LEAST_SQUARES_SETTINGS,
    Factored,
    LeastSquaresSettings,
    reproducible_noise,
)

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


@dataclass(frozen=True)
class RowSolverSettings:
    """These are the settings of the quick and the thorough solver of a convolution's rows.

    Attributes:
        rough_steps: How many steps of conjugate gradients the thorough solver takes to the point
            around which it linearises δ.
        largest_ridge_part: Rows do not determine the input if the ridge holds this part or more
            of the direction that they say least of.
        power_steps: How many steps of power iteration find that direction.
        smallest_factor: Small misfits may reduce the expected errors to this part of them.
        spare_rows: How many rows beyond the unknowns it takes for misfits to reduce them at all.
        single_precision_lift: What the quick solver adds to the diagonal, as a part of it, for
            single precision to be able to factor it.
        quick_steps: How many steps of conjugate gradients the quick solver takes at most.
        quick_starts: How often it starts again from its last solution, since rounding adds up.
        quick_tolerance: It stops at this squared distance from the solution, in standard errors,
            summed over all unknowns.
        ratio_steps: How many steps tell by how much rows say less than when they were factored.
        smallest_ratio: They are factored again if they say less than this part in a direction.
        least_squares: The settings of the dense solver that the thorough solver uses.
    """

    rough_steps: int = 30
    largest_ridge_part: float = 0.5
    power_steps: int = 8
    smallest_factor: float = 0.1
    spare_rows: int = 32
    single_precision_lift: float = 1e-6
    quick_steps: int = 40
    quick_starts: int = 3
    quick_tolerance: float = 1.0
    ratio_steps: int = 12
    smallest_ratio: float = 0.25
    least_squares: LeastSquaresSettings = LEAST_SQUARES_SETTINGS


ROW_SOLVER_SETTINGS = RowSolverSettings()


@dataclass(frozen=True, eq=False)
class SolvedRows:
    """This is the solution of a convolution's rows.

    Attributes:
        value: The input (n,).
        error: Its standard errors (n,).
        condition: A lower bound of the scaled normal matrix's condition number.
        residual: The root mean square of the rows' misfits in units of their expected errors.
        error_factor: By what the misfits say that all expected errors have to be multiplied.
        determined: Whether the rows determine every direction of the input.
        factored: The factored inverse covariance (n, n), which only the thorough solver computes.
    """

    value: Tensor
    error: Tensor
    condition: float
    residual: float
    error_factor: float
    determined: bool
    factored: Factored | None = None

    @property
    def precision(self) -> Tensor | None:
        """Return the inverse covariance (n, n), if it was computed."""
        if self.factored is None:
            return None
        return self.factored.normal.double() / self.error_factor**2


def solve_thoroughly(rows: Rows, settings: RowSolverSettings = ROW_SOLVER_SETTINGS) -> SolvedRows:
    """Return the solution with correlated errors and a δ that moves with the output.

    Args:
        rows: The rows, which may have a precision matrix and a curvature.
        settings: The settings of the solver.
    """
    around = rows.rough_solution(settings.rough_steps)
    factored = _factored(rows, around, settings.least_squares)
    found = factored.solve(lambda x: rows.slope(x, around), around)
    residual, factor = misfit(rows, found.value, settings.smallest_factor, settings.spare_rows)
    ridge = rows.prior_size**-2 + factored.lifted
    determined = found.determined and held_by_rows(
        factored.inverse, ridge, found.error[None], settings.power_steps,
        settings.largest_ridge_part,
    )  # fmt: skip
    variance = with_unseen(found.error.square(), rows, factored.lifted)
    return SolvedRows(
        found.value, variance.sqrt() * factor, found.condition, residual, factor, determined,
        factored,
    )  # fmt: skip


def solve_again(
    rows: Rows, last: SolvedRows, settings: RowSolverSettings = ROW_SOLVER_SETTINGS
) -> SolvedRows | None:
    """Return the solution of rows that have hardly changed, or None if they have changed too much.

    The last factorisation is nearly the inverse of their normal matrix, and conjugate gradients
    get to the solution in few steps. The errors are those of before. The rows say at least a
    quarter of what they said in every direction, so that no error is more than twice as large; on
    trained LeNets it was up to 1.12 times as large.

    Args:
        rows: The rows.
        last: The solution of the rows as they were, by ``solve_thoroughly``.
        settings: The settings of the solver.
    """
    if last.factored is None:
        return None
    x, converged = _descended(rows, last.value, last.factored.inverse, settings)
    if not converged:
        return None
    kept = least_ratio(
        lambda v: rows.normal_product(v, x), last.factored.inverse,
        last.factored.normal.diagonal().double(), settings.ratio_steps,
    )  # fmt: skip
    if kept < settings.smallest_ratio:
        return None
    residual, factor = misfit(rows, x, settings.smallest_factor, settings.spare_rows)
    error = last.error * (factor / last.error_factor)
    return replace(last, value=x, error=error, residual=residual, error_factor=factor)


def _factored(rows: Rows, around: Tensor, settings: LeastSquaresSettings) -> Factored:
    """Return the factored normal matrix, in single precision where that is likely to be enough.

    Where outputs are few, gradients say most of the input, and its directions are told about
    equally well. Where they are not after all, the matrix is built and factored again.
    """
    if rows.few_outputs:
        single = normal_matrix(rows, around, torch.float)
        found = Factored.in_single_precision(single, settings)
        if found is not None:
            return found
    return Factored.of(normal_matrix(rows, around), settings)


def solve_quickly(rows: Rows, settings: RowSolverSettings = ROW_SOLVER_SETTINGS) -> SolvedRows:
    """Return the solution with independent errors, by conjugate gradients on the rows themselves.

    Args:
        rows: The rows, without a precision matrix and without curvature.
        settings: The settings of the solver.
    """
    zero = torch.zeros(rows.shape, dtype=rows.z.dtype, device=rows.z.device).flatten()
    channels, diagonal = rows.shape[0], rows.normal_diagonal()
    lifted = settings.single_precision_lift * diagonal.view(channels, -1).amax(0)
    ridge = rows.prior_size**-2 + lifted
    inverse = approximate_inverse(rows, ridge)
    if inverse is None:
        return SolvedRows(zero, zero + torch.inf, torch.inf, 0.0, 1.0, False)
    x, converged = _descended(rows, zero, inverse.solve, settings)
    draws = inverse.draws(settings.least_squares.error_draws)
    variance = draws.square().mean(0)
    residual, factor = misfit(rows, x, settings.smallest_factor, settings.spare_rows)
    determined = converged and held_by_rows(
        inverse.solve, ridge.repeat(channels), draws, settings.power_steps,
        settings.largest_ridge_part,
    )  # fmt: skip
    square = variance if determined else with_unseen(variance, rows, lifted.repeat(channels))
    condition = float((variance * diagonal).max())
    return SolvedRows(x, square.sqrt() * factor, condition, residual, factor, determined)


def _descended(
    rows: Rows, start: Tensor, inverse: Callable[[Tensor], Tensor], settings: RowSolverSettings
) -> tuple[Tensor, bool]:
    """Return the solution (n,) by conjugate gradients, and whether the last start found no step.

    The rows are linearised around the input (n,) to start from.
    """
    x = start
    for _ in range(settings.quick_starts):
        step = conjugate_gradients(
            lambda v: rows.normal_product(v, start),
            rows.slope(x, start),
            inverse,
            settings.quick_steps,
            settings.quick_tolerance,
        )
        if not step.any():
            return x, True
        x = x + step
    return x, False
