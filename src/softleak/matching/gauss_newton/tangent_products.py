"""This module computes Jacobians by forward-over-reverse products, in chunks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from softleak.matching.gauss_newton.batch_function import BatchFunction

Product = Callable[[Tensor, Tensor], Tensor]


@dataclass(eq=False)
class TangentProducts:
    """This multiplies with the Jacobian of a batch function, and with its transpose.

    A chunk of tangents goes through ``jvp`` of the gradient under ``vmap``. The operations of
    a chunk are recorded and replayed for all that follow, which spares the overhead of the
    transformations: three quarters of the time of a small network. A model whose Python code
    branches on its data may be recorded wrongly; whoever certifies an answer compares the
    Jacobian with differences of the function itself.

    Attributes:
        function: the batch function, in the dtype of the products.
        memory: the bytes that a chunk may take.
        most: the largest number of tangents in a chunk; beyond it a chunk is not faster.
        copies: how many times its rows and the outputs of all layers a tangent holds while it is
            carried through the network.
        rehearsals: how many chunks run before one is recorded, which takes as long as about so
            many.
    """

    function: BatchFunction
    memory: int
    most: int = 512
    copies: int = 6
    rehearsals: int = 4
    _count: int = field(default=0, init=False, repr=False)
    _recorded: Product | None = field(default=None, init=False, repr=False)

    @cached_property
    def chunk(self) -> int:
        """Return how many tangents are carried at once."""
        like = self.function.model.like
        entries = sum(self.function.sizes.values()) + self.function.activations
        room = self.memory // (self.copies * entries * like.element_size())
        return max(1, min(self.most, room, self.function.unknowns))

    @property
    def recorded(self) -> bool:
        """Return whether the operations of a chunk are replayed from now on."""
        return self._recorded is not None

    def jacobian(self, z: Tensor, weight: Tensor, kept: Tensor | None) -> Tensor:
        """Return the transposed Jacobian (n, R'), each row of the equations times its weight.

        Args:
            z: the unknowns (n,).
            weight: the weight (R,) of each row.
            kept: the indices (R',) of the rows to keep; None means all.
        """
        like, n, chunk = self.function.model.like, self.function.unknowns, self.chunk
        z, weight = z.to(like), weight.to(like)
        weight = weight if kept is None else weight[kept]
        out = like.new_empty(n, len(weight))
        tangents = like.new_zeros(chunk, n)
        with torch.no_grad():
            for begin in range(0, n, chunk):
                end = min(begin + chunk, n)
                tangents.zero_()
                tangents[:, begin:end].fill_diagonal_(1)
                columns = self._product(z, tangents)[: end - begin]
                chosen = columns if kept is None else columns[:, kept]
                torch.mul(chosen, weight, out=out[begin:end])
        return out

    def along(self, z: Tensor, v: Tensor) -> Tensor:
        """Return ``J v`` (R,), not weighted."""
        like = self.function.model.like
        product: Tensor = jvp(self.function.rows, (z.to(like),), (v.to(like),))[1]
        return product

    def against(self, z: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the function from ``u`` (R,) to ``Jᵀ u`` (n,), not weighted."""
        like = self.function.model.like
        back = vjp(self.function.rows, z.to(like))[1]
        return lambda u: back(u.to(like))[0]

    def _product(self, z: Tensor, tangents: Tensor) -> Tensor:
        """Return ``J v`` of a chunk of tangents (K, n), as (K, R)."""
        self._count += 1
        if self._recorded is None and self._count > self.rehearsals:
            self._recorded = self._record(z, tangents)
        if self._recorded is not None:
            return self._recorded(z, tangents)
        try:
            return self._vectorised(z, tangents)
        except Exception:  # control flow by data, an operation without a batched form
            self._recorded = self._one_by_one
            return self._one_by_one(z, tangents)

    def _vectorised(self, z: Tensor, tangents: Tensor) -> Tensor:
        def one(v: Tensor) -> Tensor:
            carried: Tensor = jvp(self.function.rows, (z,), (v,))[1]
            return carried

        found: Tensor = vmap(one)(tangents)
        return found

    def _one_by_one(self, z: Tensor, tangents: Tensor) -> Tensor:
        return torch.stack([self.along(z, v) for v in tangents])

    def _record(self, z: Tensor, tangents: Tensor) -> Product:
        """Return the product as a list of recorded operations, or as it is if that fails."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                recorded = make_fx(self._vectorised)(z, tangents)
        except Exception:  # an operation that cannot be recorded
            return self._vectorised
        recorded.graph.eliminate_dead_code()
        recorded.recompile()
        done: Product = recorded
        return done
