"""This module looks at the units whose activation folds, that is, falls and then rises again.

GELU, SiLU and Mish have a dip below zero. Two inputs on either side of it give the same output, so
that a unit can be on the wrong side while the network hardly notices it on the way forward. On the
way back it does: there the slope of the activation counts, and it has the other sign.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap
from torch.overrides import TorchFunctionMode

from softleak.matching.gauss_newton.batch_function import BatchFunction

FOLDED = frozenset(("gelu", "silu", "mish"))
FOLD_REACH = 12  # beyond it these activations are flat or straight
FINENESS = 1000  # places within one of the argument
UNITS_AT_ONCE = 64  # units that are followed at once


class _FirstFold(TorchFunctionMode):
    """This catches the first activation that folds, and may change its slope.

    Attributes:
        change: what is added to the slope of each unit, if anything.
        entered: what entered the activation, once it ran.
        act: the activation, once it ran.
    """

    def __init__(self, change: Tensor | None = None) -> None:
        super().__init__()
        self.change = change
        self.entered: Tensor | None = None
        self.act: Callable[[Tensor], Tensor] | None = None

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 - torch calls it with a function
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        own = kwargs or {}
        if self.entered is not None or getattr(func, "__name__", "") not in FOLDED:
            return func(*args, **own)
        u = self.entered = args[0].clone()  # a function that works in place would write over it
        rest = {name: value for name, value in own.items() if name != "inplace"}
        self.act = lambda v: func(v, **rest)
        out = self.act(u)
        if self.change is None:
            return out
        return out + self.change.reshape(u.shape) * (u - u.detach())


@dataclass(frozen=True, eq=False)
class FoldedUnits:
    """This holds the units of the first layer that folds, at one place.

    Attributes:
        function: what a client sends.
        z: the unknowns (n,).
        entered: what enters the activation of each unit, (U,).
        act: the activation.
    """

    function: BatchFunction
    z: Tensor
    entered: Tensor
    act: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, function: BatchFunction, z: Tensor) -> FoldedUnits | None:
        """Return the units at unknowns (n,), or None if no layer folds."""
        with torch.no_grad(), _FirstFold() as seen:
            function.model.model(function.inputs(z))
        if seen.entered is None or seen.act is None:
            return None
        return cls(function, z, seen.entered.reshape(-1), seen.act)

    def twins(self) -> Tensor:
        """Return for each unit the input (U,) on the other side of the dip with the same output."""
        grid = torch.linspace(
            -FOLD_REACH, FOLD_REACH, 2 * FOLD_REACH * FINENESS + 1, dtype=torch.double
        )
        values, wanted = self.act(grid), self.act(self.entered)
        dip = int(values.argmin())

        def solved(side: Tensor) -> Tensor:
            """Return where a rising side of the dip, as indices from the dip on, is as wanted."""
            place = torch.searchsorted(values[side], wanted).clamp_max(len(side) - 1)
            return grid[side[place]]

        right, left = torch.arange(dip, len(grid)), torch.arange(dip, -1, -1)
        return torch.where(self.entered > grid[dip], solved(left), solved(right))

    def slopes(self, u: Tensor) -> Tensor:
        """Return the slope of the activation at inputs (U,)."""
        slopes: Tensor = jvp(self.act, (u,), (torch.ones_like(u),))[1]
        return slopes

    def tangents(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return how the rows change with the slopes of chosen units (K,).

        Returns:
            The rows (T,) that change at all, and how they change, as (K, T).
        """

        def rows(change: Tensor) -> Tensor:
            with _FirstFold(change):
                return self.function.rows(self.z)

        def along(change: Tensor) -> Tensor:
            carried: Tensor = jvp(rows, (torch.zeros_like(change),), (change,))[1]
            return carried

        with torch.no_grad():
            touched = along(torch.ones_like(self.entered)).nonzero().flatten()
            each = vmap(lambda unit: along(self._only(unit))[touched], chunk_size=UNITS_AT_ONCE)
            return touched, each(chosen)

    def _only(self, unit: Tensor) -> Tensor:
        """Return a one (U,) at the place of a unit, else zeros."""
        return torch.zeros_like(self.entered).index_fill(0, unit, 1.0)

    def moves(self, chosen: Tensor, ridge: float) -> Tensor:
        """Return the changes (K, n) of the unknowns that move one unit each by one.

        They move the other units of the layer as little as they can.

        Args:
            chosen: the units (K,).
            ridge: how much the length of a change counts beside what it does to other units.
        """
        shape, pixels = self.function.shape, self.function.pixels

        def entered(x: Tensor) -> Tensor:
            with _FirstFold() as seen:
                self.function.model.model(x.view(shape))
            return self.z.new_zeros(0) if seen.entered is None else seen.entered.reshape(-1)

        with torch.no_grad():  # a graph of every unit would take gigabytes
            back = vjp(entered, self.z[:pixels])[1]
            each = vmap(lambda unit: back(self._only(unit))[0], chunk_size=UNITS_AT_ONCE)
            by_pixel = each(torch.arange(len(self.entered)))
        matrix = by_pixel.T @ by_pixel
        matrix.diagonal().add_(ridge * matrix.diagonal().mean())
        own = by_pixel[chosen]
        moves = torch.linalg.solve(matrix, own.T).T
        moves = moves / (moves * own).sum(1, keepdim=True)
        return torch.nn.functional.pad(moves, (0, len(self.z) - pixels))
