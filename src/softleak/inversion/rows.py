"""This module holds the weighted equations ("rows") that a convolution's input x has to meet.

K ∗ x = z                    z is known, with independent errors or a precision matrix
∂L/∂K = δ(x) ⋆ x             δ(x) = δ + curvature · (K ∗ x − z)
∂L/∂b = Σ δ(x)

Below, n counts the entries of x (C, H, W), m those of z (Co, Ho, Wo), and L = Ho·Wo positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.inversion.conjugate_gradients import conjugate_gradients
from softleak.inversion.geometry import Geometry
from softleak.inversion.state import TINY


@dataclass(frozen=True, eq=False)
class Rows:
    """These are the rows of one group of a convolution.

    Attributes:
        geometry: Where the convolution looks.
        kernel: The kernel K (Co, C, kh, kw).
        z: The output without the bias (Co, Ho, Wo).
        z_error: Its standard errors (Co, Ho, Wo), infinite where a row says nothing.
        delta: The derivative ``δ = ∂L/∂z`` (Co, Ho, Wo).
        curvature: How fast δ moves with z, entry by entry (Co, Ho, Wo).
        g: The gradients of kernel and bias (Co, C·k + 1). The last column belongs to the bias, as
            if it were the weight of a constant one.
        g_error: Their standard errors: the same in all of a row but the last column, which is
            infinite if there is no gradient of the bias.
        precision: The inverse covariance (m, m) of z, if its errors are correlated.
        measurements: How many independent measurements ``precision`` stands for; None stands
            for m.
        prior_size: How large inputs are expected to be at most. It acts through a ridge
            ``1/prior_size²`` in directions that no row sees.
    """

    geometry: Geometry
    kernel: Tensor
    z: Tensor
    z_error: Tensor
    delta: Tensor
    curvature: Tensor
    g: Tensor
    g_error: Tensor
    precision: Tensor | None = None
    measurements: int | None = None
    prior_size: float = math.inf

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape (C, H, W) of the input."""
        return (self.kernel.shape[1], *self.geometry.size)

    @property
    def count(self) -> int:
        """Return the number of rows whose error is finite."""
        forward = int(self.z_error.isfinite().sum())
        if self.precision is not None:
            forward = self.z.numel() if self.measurements is None else self.measurements
        return forward + int(self.g_error.isfinite().sum())

    @property
    def few_outputs(self) -> bool:
        """Tell whether the input has at least twice as many entries as the output."""
        return 2 * self.z.numel() <= math.prod(self.shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``K ∗ x`` (Co, Ho, Wo) of an input (n,)."""
        return self.geometry.forward(x.view(1, *self.shape), self.kernel)[0]

    def transposed(self, rows: Tensor) -> Tensor:
        """Return ``rows T`` (R, n) for rows (R, m), T being the convolution's matrix (m, n)."""
        shaped = rows.view(len(rows), *self.z.shape)
        return self.geometry.transposed(shaped, self.kernel).flatten(1)

    def patches(self, x: Tensor) -> Tensor:
        """Return what each position sees of an input (n,), and the constant one: (C·k + 1, L)."""
        patches = self.geometry.patches(x.view(self.shape))
        return torch.cat([patches, torch.ones_like(patches[:1])])

    def misfits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far an input (n,) misses the rows.

        Returns:
            ``z − K ∗ x`` (Co, Ho, Wo), and the misfits of the gradients (Co, C·k + 1) in units of
            their errors.
        """
        off = self.z - self.forward(x)
        delta = (self.delta - self.curvature * off).flatten(1)
        return off, (self.g - delta @ self.patches(x).T) / self.g_error

    def weighted(self, off: Tensor) -> Tensor:
        """Return misfits (Co, Ho, Wo) of the forward rows times their precision."""
        if self.precision is not None:
            return (self.precision @ off.flatten()).view_as(off)
        return off * self.z_error.square().clamp_min(TINY).reciprocal()

    def squared_misfit(self, x: Tensor) -> float:
        """Return the sum of all rows' squared misfits, in units of their errors."""
        off, gradient = self.misfits(x)
        return float((off * self.weighted(off)).sum() + gradient.square().sum())

    def slope(self, x: Tensor, around: Tensor) -> Tensor:
        """Return ``Aᵀ(b − A x)`` (n,) over all rows and the ridge.

        Args:
            x: The input (n,) at which to compute the misfits.
            around: A nearby input (n,) at which to compute the derivative A of the rows.
        """
        return self._pulled(*self.misfits(x), around) - x / self.prior_size**2

    def normal_product(self, v: Tensor, around: Tensor) -> Tensor:
        """Return ``AᵀA v`` (n,) over all rows and the ridge, A being the derivative of ``slope``.

        Args:
            v: A vector (n,).
            around: The input (n,) at which to compute A.
        """
        moved = self.forward(v)
        direct = self.delta.flatten(1) @ self.geometry.patches(v.view(self.shape)).T
        gradient = torch.nn.functional.pad(direct, (0, 1))
        if self.curvature.any():
            gradient += (self.curvature * moved).flatten(1) @ self.patches(around).T
        gradient /= self.g_error
        return self._pulled(moved, gradient, around) + v / self.prior_size**2

    def _pulled(self, off: Tensor, gradient: Tensor, around: Tensor) -> Tensor:
        """Return ``Aᵀ`` times misfits (n,): of the output, and of gradients in their errors."""
        pulled = gradient / self.g_error
        outputs = self.weighted(off)
        if self.curvature.any():
            through_delta = (pulled @ self.patches(around)).view_as(off)
            outputs = outputs + self.curvature * through_delta
        back = self.geometry.transposed(outputs[None], self.kernel)[0]
        direct = self.geometry.gathered(pulled[:, :-1].T @ self.delta.flatten(1))
        return (back + direct).flatten()

    def rough_solution(self, steps: int) -> Tensor:
        """Return an input (n,) near the solution, after so many steps of conjugate gradients.

        δ is taken not to move with z, and all errors as independent.
        """
        still = torch.zeros_like(self.curvature)
        rigid = replace(self, curvature=still, precision=None)
        zero = torch.zeros(self.shape, dtype=self.z.dtype, device=self.z.device).flatten()
        right = rigid.slope(zero, zero)
        diagonal = rigid.normal_diagonal()
        return conjugate_gradients(
            lambda v: rigid.normal_product(v, zero), right, lambda r: r / diagonal, steps
        )

    def normal_diagonal(self) -> Tensor:
        """Return the diagonal (n,) of the normal matrix without its ridge.

        δ is taken not to move with z, and all errors as independent.
        """
        weights = self.weighted(torch.ones_like(self.z))
        forward = self.geometry.transposed(weights[None], self.kernel.square())[0]
        strength = (self.delta.flatten(1) / self.g_error[:, :1]).square().sum(0)
        taps = strength.expand(self.kernel[0].numel(), -1)
        return (forward + self.geometry.gathered(taps)).flatten().clamp_min(TINY)
