"""A convolution of a chain: its input from its output and from its gradients.

All of them are linear in the input, or nearly (docs/inputs.md). The rows are solved quickly, with
independent errors, or thoroughly; both predict the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from softleak.core.share import GradientShare
from softleak.inversion.conv.rows import Geometry, Rows, approximate_inverse, normal_matrix
from softleak.inversion.results import LayerReport
from softleak.inversion.steps import LayerState, gradient
from softleak.numerics.least_squares import (
    ERROR_DRAWS,
    TINY,
    Factored,
    conjugate_gradients,
)

ROUGH_STEPS = 30  # of conjugate gradients to the point around which δ is linearised
LARGEST_RIDGE_PART = 0.5  # of the ridge in the direction that determined rows say least of
POWER_STEPS = 8  # of power iteration, which find that direction
SMALLEST_FACTOR = 0.1  # to which small misfits may reduce the expected errors
SPARE_ROWS = 32  # beyond the unknowns, for misfits to reduce them at all
SINGLE_PRECISION_LIFT = 1e-6  # of the diagonal, added for single precision to factor the matrix
QUICK_STEPS = 40  # of conjugate gradients at most
QUICK_STARTS = 3  # from the last solution, since rounding adds up
QUICK_TOLERANCE = 1.0  # squared distance from the solution in standard errors, over all unknowns

Apply = Callable[[Tensor], Tensor]


def with_unseen(variance: Tensor, rows: Rows, lifted: Tensor) -> Tensor:
    """Return variances (n,) that count what a lifted diagonal (n,) hides."""
    return variance * (1 + rows.prior_size**2 * lifted)


def held_by_rows(inverse: Apply, ridge: Tensor, draws: Tensor, steps: int, largest: float) -> bool:
    """Tell whether the ridge's part in every direction is smaller than ``largest``.

    The largest part is at most the sum of all, which the draws tell to a fifth at worst. Only if
    that is not small enough, it is computed, as by ``ridge_part``. The draws (D, n) have the
    covariance ``N⁻¹``, or are its standard errors (1, n).
    """
    if float((draws.square().mean(0) * ridge).sum()) < largest / 2:
        return True
    return ridge_part(inverse, ridge, draws[0], steps) < largest


def ridge_part(inverse: Apply, ridge: Tensor, start: Tensor, steps: int) -> float:
    """Return the ridge's part in the precision of the direction that rows say least of.

    It is the largest eigenvalue of ``R^½ N⁻¹ R^½`` with the ridge R (n,) on the diagonal of N, by
    power iteration from a vector (n,) in which such directions stand out. It is one if the rows
    say nothing of that direction.
    """
    root = ridge.sqrt()
    v, held = start * root, 0.0
    for _ in range(steps):
        v = v / v.norm()
        product = root * inverse(root * v)
        held, v = float(v @ product), product
    return held


def misfit(rows: Rows, x: Tensor) -> tuple[float, float]:
    """Return the root mean square of the misfits at a solution, and the factor it puts on errors.

    With fewer rows beyond the unknowns than ``SPARE_ROWS``, the factor is one or more.
    """
    spare = rows.count - x.numel()
    squares = max(rows.squared_misfit(x), 0.0)  # rounding may make the sum negative
    residual = (squares / max(spare, rows.count / 10, 1)) ** 0.5
    smallest = SMALLEST_FACTOR if spare >= SPARE_ROWS else 1.0
    return residual, max(residual, smallest)


@dataclass(frozen=True, eq=False)
class SolvedRows:
    """The solution of a convolution's rows."""

    value: Tensor  # the input (n,)
    error: Tensor  # its standard errors (n,)
    condition: float  # a lower bound of the scaled normal matrix's condition number
    residual: float  # the root mean square of the rows' misfits in units of their expected errors
    error_factor: float  # by what the misfits say that all expected errors have to be multiplied
    determined: bool  # whether the rows determine every direction of the input
    precision: Tensor | None = None  # the inverse covariance (n, n), if it was computed


def solve_thoroughly(rows: Rows) -> SolvedRows:
    """Return the solution with correlated errors and a δ that moves with the output."""
    around = rows.rough_solution(ROUGH_STEPS)
    factored = Factored.of(normal_matrix(rows, around))
    found = factored.solve(lambda x: rows.slope(x, around), around)
    residual, factor = misfit(rows, found.value)
    ridge = rows.prior_size**-2 + factored.lifted
    determined = found.determined and held_by_rows(
        factored.inverse, ridge, found.error[None], POWER_STEPS, LARGEST_RIDGE_PART
    )
    variance = with_unseen(found.error.square(), rows, factored.lifted)
    return SolvedRows(
        found.value, variance.sqrt() * factor, found.condition, residual, factor, determined,
        factored.normal / factor**2,
    )  # fmt: skip


def solve_quickly(rows: Rows) -> SolvedRows:
    """Return the solution with independent errors, by conjugate gradients on the rows."""
    zero = rows.z.new_zeros(math.prod(rows.shape))
    channels, diagonal = rows.shape[0], rows.normal_diagonal()
    lifted = SINGLE_PRECISION_LIFT * diagonal.view(channels, -1).amax(0)
    ridge = rows.prior_size**-2 + lifted
    inverse = approximate_inverse(rows, ridge)
    if inverse is None:
        return SolvedRows(zero, zero + torch.inf, torch.inf, 0.0, 1.0, False)
    x, converged = _descended(rows, zero, inverse.solve)
    draws = inverse.draws(ERROR_DRAWS)
    variance = draws.square().mean(0)
    residual, factor = misfit(rows, x)
    determined = converged and held_by_rows(
        inverse.solve, ridge.repeat(channels), draws, POWER_STEPS, LARGEST_RIDGE_PART
    )
    square = variance if determined else with_unseen(variance, rows, lifted.repeat(channels))
    condition = float((variance * diagonal).max())
    return SolvedRows(x, square.sqrt() * factor, condition, residual, factor, determined)


def _descended(rows: Rows, start: Tensor, inverse: Apply) -> tuple[Tensor, bool]:
    """Return the solution (n,) by conjugate gradients, and whether the last start found no step.

    The rows are linearised around the input (n,) to start from.
    """
    x = start
    for _ in range(QUICK_STARTS):
        step = conjugate_gradients(
            lambda v: rows.normal_product(v, start), rows.slope(x, start), inverse,
            QUICK_STEPS, QUICK_TOLERANCE,
        )  # fmt: skip
        if not step.any():
            return x, True
        x = x + step
    return x, False


PRIOR_FACTOR = 10.0  # on the size that gradients suggest, where no row tells an input's size
WEAK_DELTA = 1e-9  # of the largest |δ|: channels below it say nothing of the input's size
GRADIENT_ROUNDINGS = 2.0  # the error of a gradient, in resolutions of its type
OUTPUT_ROUNDINGS = 4.0  # the error of an output that was computed, in resolutions of its type
ROUNDING_FLOOR = 1e-3  # of the largest entry: sums round at the size of their terms
MOST_INPUTS = 3 * 64 * 64  # a matrix of their square is held in memory
LINEARISATIONS = 3  # of the activation above, at most


@dataclass(frozen=True, eq=False)
class Conv:
    """A convolution of a chain, with what the inversions of all shares have in common."""

    name: str  # the layer's name in the model
    layer: nn.Conv2d  # the layer
    geometry: Geometry  # where it looks
    quick: bool = False  # whether all errors are taken as independent, which is cheaper

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return (self.layer.in_channels, *self.geometry.size)

    def back(self, out: LayerState, share: GradientShare) -> tuple[LayerState, LayerReport]:
        gradient(share, f"{self.name}.weight", self.layer.weight)
        for _ in range(LINEARISATIONS):
            groups = self.rows(out.with_independent_errors() if self.quick else out, share)
            found = [self._solved(rows) for rows in groups]
            pairs = zip(groups, found, strict=True)
            z = torch.cat([rows.forward(f.value) for rows, f in pairs]) + self.bias
            moved = out.moved(z) if out.moved else None
            if moved is None:
                break
            out = moved
        # The output is now better known than before, and δ moves with it.
        delta = out.delta + out.curvature * (z - out.value)
        below = self._delta_in(delta, out.delta_error, self.resolution(share))
        report = LayerReport(
            self.name, sum(rows.count for rows in groups), sum(f.value.numel() for f in found),
            max(f.condition for f in found), max(f.residual for f in found),
            all(f.determined for f in found),
        )  # fmt: skip
        return self._state(found, below, out.scale_error), report

    @property
    def bias(self) -> Tensor | float:
        bias = self.layer.bias
        return 0.0 if bias is None else bias.detach().double()[:, None, None]

    def resolution(self, share: GradientShare) -> float:
        """Return the relative rounding error of the layer's weight gradient."""
        return share.resolution(f"{self.name}.weight", self.layer.weight.dtype)

    def rows(self, out: LayerState, share: GradientShare) -> list[Rows]:
        """Return the rows of each group, for what is known at the layer's output (Co, Ho, Wo)."""
        input_size, groups = self._input_size(out.delta, share), self.layer.groups
        g, g_error = self._gradients(out, share, input_size)
        rounding = OUTPUT_ROUNDINGS * self.resolution(share) * out.value.abs()
        parts = (  # in the order of the fields of Rows
            self.layer.weight.detach().double(), out.value - self.bias, out.error + rounding,
            out.delta, out.curvature, g, g_error,
        )  # fmt: skip
        precision = out.precision if groups == 1 else None
        prior_size = PRIOR_FACTOR * input_size
        split = zip(*(part.chunk(groups) for part in parts), strict=True)
        return [
            Rows(self.geometry, k, y, e, d, c, own, off, precision, out.measurements, prior_size)
            for k, y, e, d, c, own, off in split
        ]

    def _gradients(
        self, out: LayerState, share: GradientShare, input_size: float
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of kernel and bias (Co, C·k + 1) and their errors.

        The error of a gradient of the kernel is that of rounding and noise, and that of δ times
        the input's size. A missing gradient of the bias has an infinite error.
        """
        rounding = GRADIENT_ROUNDINGS * self.resolution(share)
        weight = gradient(share, f"{self.name}.weight", self.layer.weight).double().flatten(1)
        largest = weight.abs().amax(1)
        size = out.delta.flatten(1).norm(dim=1).clamp_min(TINY)
        own = rounding * (largest + ROUNDING_FLOOR * largest.amax()) + share.noise(
            f"{self.name}.weight"
        )
        off = out.delta_error.hypot(out.scale_error * out.delta).flatten(1).norm(dim=1)
        error = (own.hypot(off * input_size) + TINY)[:, None].expand_as(weight)
        name = f"{self.name}.bias"
        if self.layer.bias is None or name not in share:
            nothing = torch.zeros_like(size)[:, None]
            return torch.cat([weight, nothing], 1), torch.cat([error, nothing + torch.inf], 1)
        bias = gradient(share, name, self.layer.bias).double()
        bias_error = (rounding * (bias.abs() + size) + share.noise(name)).hypot(off) + TINY
        return torch.cat([weight, bias[:, None]], 1), torch.cat([error, bias_error[:, None]], 1)

    def _input_size(self, delta: Tensor, share: GradientShare) -> float:
        """Return roughly the root mean square of the input."""
        weight = gradient(share, f"{self.name}.weight", self.layer.weight).double()
        largest, size = weight.flatten(1).abs().amax(1), delta.flatten(1).norm(dim=1)
        clear = size > WEAK_DELTA * size.max()
        if not clear.any():
            return 1.0
        positions: float = delta[0].numel() ** 0.5
        return float((largest[clear] / size[clear]).amax()) / positions or 1.0

    def _solved(self, rows: Rows) -> SolvedRows:
        """Return the solution of one group; averages always need the thorough solver."""
        quickly = self.quick and rows.precision is None
        return solve_quickly(rows) if quickly else solve_thoroughly(rows)

    def _state(
        self, found: list[SolvedRows], below: tuple[Tensor, Tensor], scale_error: float
    ) -> LayerState:
        """Return the input that the groups found together, beside ``∂L/∂x`` and its error."""
        value, error = (
            torch.cat(parts).view(self.input_shape)
            for parts in zip(*((f.value, f.error) for f in found), strict=True)
        )
        return replace(
            LayerState.uncoupled(value, error, *below, scale_error),
            precision=found[0].precision if len(found) == 1 else None,
            error_reduction=max(1.0, *(1 / max(f.error_factor, TINY) for f in found)),
        )

    def _delta_in(self, delta: Tensor, error: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return ``∂L/∂x = Kᵀ ∗ δ`` (C, H, W) and its error, from that of δ and from rounding."""
        weight, groups = self.layer.weight.detach().double(), self.layer.groups
        before = self.geometry.transposed(delta[None], weight, groups)[0]
        moved = self.geometry.transposed(error.square()[None], weight.square(), groups)[0]
        return before, moved.sqrt() + 4 * eps * (before.abs() + before.abs().mean())
