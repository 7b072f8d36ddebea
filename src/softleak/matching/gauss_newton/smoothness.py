"""This module tells whether a network is smooth: by its layers, and by how its gradient bends."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from softleak.matching.gauss_newton.batch_function import BatchFunction

# Operations of torch that switch where their argument crosses a line.
KINKED = frozenset(
    (
        "relu", "leaky_relu", "_prelu_kernel", "prelu", "rrelu", "rrelu_with_noise", "elu",
        "celu", "selu", "hardtanh", "hardswish", "hardsigmoid", "hardshrink", "softshrink",
        "threshold", "abs", "clamp", "maximum", "minimum", "sign", "round", "floor", "topk",
        "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "amax",
    )
)  # fmt: skip


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """This remembers the names of the operations that run within it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch calls it with an operation
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self.names.add(func.overloadpacket.__name__.rstrip("_"))
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class SmoothnessProbe:
    """This measures how the second difference of the gradient shrinks with the distance.

    ``‖g(x + hv) − 2 g(x) + g(x − hv)‖`` shrinks like ``h²`` where the gradient is smooth. Where
    units switch, it shrinks more slowly: their number grows like ``h``, and each switch is a jump.

    Attributes:
        distances: the distances ``h``, from large to small, relative to inputs of size one.
        directions: along how many random directions the gradient is probed.
        least_order: the order of shrinking from which on the gradient counts as smooth.
        noise: a second difference below this part of the gradient is rounding.
        seed: the seed of inputs and directions.
    """

    distances: tuple[float, ...] = (0.03, 0.01, 0.003, 0.001)
    directions: int = 3
    least_order: float = 1.75
    noise: float = 1e-12
    seed: int = 0

    def __call__(self, function: BatchFunction) -> str:
        """Return why the network is not smooth, or nothing if it is.

        Args:
            function: what a client sends, in float64.
        """
        with torch.no_grad(), _Operations() as seen:
            function.model.model(function.model.like.new_zeros(function.shape))
        if kinked := sorted(seen.names & KINKED):
            return f"the network is not smooth: it uses {', '.join(kinked)}"
        generator = torch.Generator().manual_seed(self.seed)
        orders = [self._order(function, generator) for _ in range(self.directions)]
        if min(orders) < self.least_order:
            return (
                f"the gradient bends like a distance to the power {min(orders):.1f} (2 is smooth): "
                "units of the network switch"
            )
        return ""

    def _order(self, function: BatchFunction, generator: torch.Generator) -> float:
        """Return the least order of shrinking between two distances, along one direction."""

        def drawn(size: int) -> Tensor:
            return torch.randn(size, generator=generator, dtype=torch.double)

        labels = drawn(function.unknowns - function.pixels).view(function.shape[0], -1).softmax(1)
        z = function.pack(drawn(function.pixels), labels)
        v = torch.zeros_like(z)
        v[: function.pixels] = drawn(function.pixels)
        with torch.no_grad():
            here = function.rows(z)
            bends = [
                float((function.rows(z + h * v) - 2 * here + function.rows(z - h * v)).norm())
                for h in self.distances
            ]
        floor = self.noise * float(here.norm())
        pairs = list(zip(self.distances, bends, strict=True))
        orders = [
            math.log(b / d) / math.log(h / k)
            for (h, b), (k, d) in itertools.pairwise(pairs)
            if b > floor and d > floor
        ]
        return min(orders, default=math.inf)
