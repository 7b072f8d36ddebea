"""This module holds a network as Gauss–Newton needs it, and the normal equations of its shares."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from softleak.matching.differentiable_model import DifferentiableModel
from softleak.matching.gauss_newton.batch_function import BatchFunction
from softleak.matching.gauss_newton.image_metric import roughness_metric
from softleak.matching.gauss_newton.normal_step import NormalEquations
from softleak.matching.gauss_newton.share_equations import ShareEquations
from softleak.matching.gauss_newton.tangent_products import TangentProducts
from softleak.subject import Subject


@dataclass(eq=False)
class NewtonModel:
    """This holds a network in both precisions, for batches of one shape, with recorded products.

    Attributes:
        exact: the batch function in float64.
        quick: the batch function in float32.
        client: the batch function in the dtype in which clients compute.
        memory: the bytes that products and the Jacobian may take together.
    """

    exact: BatchFunction
    quick: BatchFunction
    client: BatchFunction
    memory: int
    _products: dict[torch.dtype, TangentProducts] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, subject: Subject, names: tuple[str, ...], shape: tuple[int, ...], memory: int
    ) -> NewtonModel:
        """Copy the model of a subject for batches of shape (B, …).

        Raises:
            ModelError: if a dropout layer is in train mode.
        """

        def copied(dtype: torch.dtype) -> BatchFunction:
            model = DifferentiableModel.of(subject.model, subject.head, dtype)
            return BatchFunction(model, names, shape)

        own = next(iter(subject.parameters.values())).dtype
        exact, quick = copied(torch.float64), copied(torch.float32)
        client = {torch.float64: exact, torch.float32: quick}.get(own) or copied(own)
        return cls(exact, quick, client, memory)

    def products(self, dtype: torch.dtype) -> TangentProducts:
        """Return products with the Jacobian in float32 or float64."""
        if dtype not in self._products:
            function = self.quick if dtype is torch.float32 else self.exact
            self._products[dtype] = TangentProducts(function, self.memory // 4)
        return self._products[dtype]

    def kept(self, seed: int = 0) -> Tensor | None:
        """Return the indices of rows for which a Jacobian fits in memory; None means all.

        Small layers are kept whole. Of large ones as many entries are drawn as fit.
        """
        sizes = list(self.exact.sizes.values())
        room = self.memory // 2 // (8 * self.exact.unknowns)
        if sum(sizes) <= room:
            return None
        low, high = 1, max(sizes)
        while low < high:
            middle = (low + high + 1) // 2
            fits = sum(min(size, middle) for size in sizes) <= room
            low, high = (middle, high) if fits else (low, middle - 1)
        generator = torch.Generator().manual_seed(seed)
        chosen, begin = [], 0
        for size in sizes:
            order = torch.randperm(size, generator=generator)[:low] if size > low else None
            own = torch.arange(size) if order is None else order.sort().values
            chosen.append(own + begin)
            begin += size
        return torch.cat(chosen)


@dataclass(eq=False)
class LinearisedShare:
    """This computes the normal equations of a share at an iterate, and holds one Jacobian at most.

    Attributes:
        model: the network.
        equations: the equations of the share, in float64.
        smoothness: the power of the frequency by which changes of an image are damped.
    """

    model: NewtonModel
    equations: ShareEquations
    smoothness: float
    _held: dict[torch.dtype, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, z: Tensor, r: Tensor, dtype: torch.dtype) -> NormalEquations:
        """Return the normal equations at ``z`` (n,) with residuals (R,), by products in a dtype."""
        weight, products = self.equations.weight, self.model.products(dtype)
        out = self._held.pop(dtype, None)
        self._held.clear()  # what another precision left behind
        if self._kept is None:
            jacobian, r = products.reduced(z, r, weight, out)
        else:
            jacobian, r = products.jacobian(z, weight, self._kept, out), r[self._kept]
        self._held[dtype] = jacobian
        found = NormalEquations.of(jacobian, r)
        return found.measured_by(self._metric, self.model.exact.pixels)

    def moved(self, normal: NormalEquations, z: Tensor, r: Tensor) -> NormalEquations:
        """Return the matrix of before with the slope ``Jᵀr`` at ``z``, in float64."""
        back = self.model.products(torch.float64).against(z)
        return replace(normal, slope=back(r * self.equations.weight * self.used))

    @cached_property
    def used(self) -> Tensor:
        """Return one for every row (R,) that the normal equations are made of, zero for others."""
        every = torch.ones_like(self.equations.weight)
        kept = self._kept
        return every if kept is None else torch.zeros_like(every).index_fill_(0, kept, 1.0)

    @cached_property
    def _kept(self) -> Tensor | None:
        return self.model.kept()

    @cached_property
    def _metric(self) -> Tensor | None:
        return roughness_metric(self.model.exact.shape, self.smoothness)
