"""This module holds the equations of one damped step as products, without any matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from softleak.matching.gauss_newton.image_metric import cosine_basis, roughness
from softleak.matching.gauss_newton.share_equations import ShareEquations
from softleak.matching.gauss_newton.tangent_products import TangentProducts


@dataclass(frozen=True, eq=False)
class ImageLengths:
    """This says how long a change of the unknowns (n,) is: rough changes of images are longer.

    It is the metric of ``roughness_metric`` for every channel, applied by cosine transforms, and
    one for unknowns that are not pixels.

    Attributes:
        shape: the shape (B, …) of the batch, whose entries are the first unknowns.
        values: how much each frequency (H, W) counts; None means that all count the same.
    """

    shape: tuple[int, ...]
    values: Tensor | None

    @classmethod
    def of(cls, shape: tuple[int, ...], power: float) -> ImageLengths:
        """Measure changes of a batch by a power of the frequency."""
        return cls(shape, roughness(shape, power))

    def scaled(self, u: Tensor, factor: Callable[[Tensor], Tensor]) -> Tensor:
        """Return a change (n,), each part of it times a function of how much the part counts."""
        one = factor(torch.ones((), dtype=u.dtype))
        if self.values is None:
            return u * one
        (rows, columns), pixels = self._cosines, torch.Size(self.shape).numel()
        waves = rows @ u[:pixels].view(-1, *self.shape[2:]) @ columns.T
        images = rows.T @ (waves * factor(self.values)) @ columns
        return torch.cat([images.reshape(-1), u[pixels:] * one])

    @cached_property
    def _cosines(self) -> list[Tensor]:
        return [cosine_basis(length) for length in self.shape[2:]]


@dataclass(frozen=True, eq=False)
class DampedProducts:
    """This holds the least squares ``‖r − J s‖² + μ uᵀ M u`` with ``u = S s``, at one iterate.

    ``S²`` is the diagonal of the normal matrix, so that ``u`` counts every unknown in units of what
    the share says about it, and ``M`` makes rough changes of an image longer.

    Attributes:
        along: the weighted product ``J v`` (R,) with a change (n,).
        back: the weighted product ``Jᵀ r`` (n,) with residuals (R,).
        scale: ``S`` (n,).
        lengths: ``M``.
        damping: ``μ``.
    """

    along: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]
    scale: Tensor
    lengths: ImageLengths
    damping: float

    @classmethod
    def of(
        cls,
        equations: ShareEquations,
        products: TangentProducts,
        lengths: ImageLengths,
        z: Tensor,
        damping: float,
        scale: Tensor | None = None,
        probes: int = 24,
        seed: int = 0,
    ) -> DampedProducts:
        """Linearise the equations at ``z`` (n,), in the precision of the products.

        Args:
            equations: what is to be fulfilled.
            products: the products with the Jacobian.
            lengths: how changes are measured.
            z: the iterate.
            damping: how much a change costs.
            scale: ``S`` (n,) of a place nearby; None means that it is estimated here.
            probes: the number of random products that estimate the diagonal.
            seed: the seed of the probes.
        """
        weight, against = equations.weight, products.against(z)

        def along(v: Tensor) -> Tensor:
            return products.along(z, v).double() * weight

        def back(r: Tensor) -> Tensor:
            return against(r * weight).double()

        if scale is not None:
            return cls(along, back, scale, lengths, damping)
        generator = torch.Generator().manual_seed(seed)
        diagonal = torch.zeros_like(z)
        for _ in range(probes):
            signs = torch.randint(0, 2, weight.shape, generator=generator).double() * 2 - 1
            diagonal += back(signs).square() / probes
        scale = diagonal.clamp_min(float(diagonal.max()) * 1e-12).sqrt()
        return cls(along, back, scale, lengths, damping)

    def carried(self, u: Tensor) -> Tensor:
        """Return what a scaled change (n,) does to the rows (R,)."""
        return self.along(u / self.scale)

    def slope(self, r: Tensor) -> Tensor:
        """Return how the scaled unknowns (n,) change the size of residuals (R,)."""
        return self.back(r) / self.scale

    def cost(self, u: Tensor) -> Tensor:
        """Return ``μ M u`` (n,)."""
        return self.damping * self.lengths.scaled(u, lambda values: values)

    def preconditioned(self, slope: Tensor) -> Tensor:
        """Return ``(1 + μ M)⁻¹`` times a slope (n,)."""
        return self.lengths.scaled(slope, lambda values: 1 / (1 + self.damping * values))
