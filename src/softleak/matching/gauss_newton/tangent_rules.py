"""This module says how operations of a recorded gradient carry many tangents at once.

An operation at fixed arguments is linear in its tangents. Here are the quick ways for operations
that take most of the time; ``carry_by_jvp`` works for all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import jvp, vmap

from softleak.matching.gauss_newton.weight_gradients import kernel_shape

Carry = Callable[..., Any]
aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Operation:
    """This is one recorded operation at one iterate.

    Attributes:
        node: the operation as it was recorded.
        values: what every node before it is at the iterate.
        value: what the operation returns there.
        sources: the nodes among its arguments that have tangents.
    """

    node: fx.Node
    values: Mapping[fx.Node, Any]
    value: Any
    sources: tuple[fx.Node, ...]

    @property
    def args(self) -> tuple[Any, ...]:
        """Return the positional arguments at the iterate."""
        found: tuple[Any, ...] = fx.map_arg(self.node.args, lambda node: self.values[node])
        return found

    def source_at(self, position: int) -> int | None:
        """Return which source stands at a position among the arguments, if one does."""
        node = self.node.args[position]
        return self.sources.index(node) if node in self.sources else None

    def run(self, *given: Tensor) -> Any:  # noqa: ANN401 - operations return what they like
        """Return what the operation makes of other values of its sources."""
        swapped = dict(zip(self.sources, given, strict=True))

        def value(node: fx.Node) -> Any:  # noqa: ANN401
            return swapped.get(node, self.values[node])

        target = self.node.target
        if not callable(target):
            raise TypeError(f"expected a recorded operation, got {target!r}")
        return target(*fx.map_arg(self.node.args, value), **fx.map_arg(self.node.kwargs, value))

    def slopes(self) -> Sequence[Tensor | float]:
        """Return the derivative of a pointwise operation by each source, entry by entry.

        A derivative may have fewer entries than the operation's value if it is broadcast to it.
        """
        quick = SLOPES.get(self.node.target)
        places = [self.source_at(position) for position in range(min(2, len(self.node.args)))]
        if quick is not None and len(set(places)) == len(places):
            both = quick(*self.args[:2], self.node.kwargs.get("alpha", 1))
            found = [slope for slope, place in zip(both, places, strict=True) if place is not None]
            return found if places != [1, 0] else found[::-1]
        return self._slopes_by_autograd()

    def _slopes_by_autograd(self) -> list[Tensor]:
        found = []
        for source in self.sources:
            with torch.enable_grad():
                own = self.values[source].expand(self.value.shape).clone().requires_grad_()
                given = [own if other is source else self.values[other] for other in self.sources]
                out = self.run(*given).sum()
            slope = torch.autograd.grad(out, own)[0] if out.requires_grad else None
            found.append(torch.zeros_like(self.value) if slope is None else slope)
        return found


def carry_by_jvp(operation: Operation) -> Carry:
    """Return how tangents pass through any operation that can be differentiated."""
    primals = tuple(operation.values[source] for source in operation.sources)
    if isinstance(operation.value, Tensor):
        return vmap(lambda *tangents: jvp(operation.run, primals, tangents)[1])
    numbers = [k for k, one in enumerate(operation.value) if isinstance(one, Tensor)]

    def several(*given: Tensor) -> tuple[Tensor, ...]:
        found = operation.run(*given)
        return tuple(found[k] for k in numbers)

    def carry(*tangents: Tensor) -> dict[int, Tensor]:
        carried = vmap(lambda *each: jvp(several, primals, each)[1])(*tangents)
        return dict(zip(numbers, carried, strict=True))

    return carry


def carry_linear(operation: Operation) -> Carry:
    """Return how tangents pass through an operation that is linear in its only source."""
    if len(operation.sources) > 1:
        return carry_by_jvp(operation)
    return vmap(operation.run)


def carry_summed(operation: Operation) -> Carry:
    """Return how tangents pass through a sum over axes; over the last ones it is a product."""
    x, axes = operation.args[:2]
    gone = {axis % x.dim() for axis in axes}
    left = [axis for axis in range(x.dim()) if axis not in gone and x.shape[axis] > 1]
    inner = math.prod(x.shape[left[-1] + 1 :] if left else x.shape)
    if inner * operation.value.numel() != x.numel():
        return carry_linear(operation)
    ones, shape = x.new_ones(inner), operation.value.shape
    return lambda tangents: (tangents.reshape(-1, inner) @ ones).view(len(tangents), *shape)


def carry_reshaped(operation: Operation) -> Carry:
    """Return how tangents pass through a change of shape."""
    shape = operation.value.shape
    return lambda tangents: tangents.reshape(len(tangents), *shape)


def carry_product(operation: Operation) -> Carry:
    """Return how tangents pass through a matrix product ``A B``, as one large product."""
    a, b = operation.args[:2]
    left, right = operation.source_at(0), operation.source_at(1)

    def carry(*tangents: Tensor) -> Tensor:
        parts = []
        if left is not None:
            parts.append(_times(tangents[left], b))
        if right is not None:
            parts.append(_times(tangents[right].transpose(1, 2), a.T).transpose(1, 2))
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    return carry


def _times(many: Tensor, one: Tensor) -> Tensor:
    """Return matrices (K, m, k) times a matrix (k, n)."""
    k, rows, inner = many.shape
    return (many.reshape(k * rows, inner) @ one).view(k, rows, -1)


def carry_products(operation: Operation) -> Carry:
    """Return how tangents pass through a batch of matrix products."""
    a, b = operation.args[:2]
    left, right = operation.source_at(0), operation.source_at(1)

    def carry(*tangents: Tensor) -> Tensor:
        parts: list[Tensor] = [] if left is None else [tangents[left] @ b]
        parts += [] if right is None else [a @ tangents[right]]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    return carry


def carry_convolved(operation: Operation) -> Carry:
    """Return how tangents of its input pass through a convolution."""
    if operation.source_at(0) is None or len(operation.sources) > 1:
        return carry_by_jvp(operation)
    _, weight, _, *settings = operation.args

    def carry(tangents: Tensor) -> Tensor:
        found: Tensor = aten.convolution(tangents.flatten(0, 1), weight, None, *settings)
        return found.view(*tangents.shape[:2], *found.shape[1:])

    return carry


def carry_convolved_back(operation: Operation) -> Carry:
    """Return how tangents of its input and sensitivity pass through a convolution's gradient."""
    delta, x, weight, bias, *settings, mask = operation.args
    kernel = kernel_shape(weight, settings)
    of_delta, of_input = operation.source_at(0), operation.source_at(1)
    if kernel is None or operation.source_at(2) is not None:
        return carry_by_jvp(operation)
    to_input = _carry_to_input(x, weight, bias, settings)

    def carry(*tangents: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        parts, own = [], None
        if of_delta is not None:
            own = tangents[of_delta]
            parts.append(kernel.of_delta(own, x))
        if of_input is not None:
            parts.append(kernel.of_input(tangents[of_input], delta))
        whole = parts[0] if len(parts) == 1 else parts[0].add_(parts[1])
        return (
            to_input(own) if own is not None and mask[0] else None,
            whole if mask[1] else None,
            own.sum((1, 3, 4)) if own is not None and mask[2] else None,
        )

    return carry


def _carry_to_input(
    x: Tensor, weight: Tensor, bias: object, settings: list[Any]
) -> Callable[[Tensor], Tensor]:
    """Return how tangents of the sensitivity pass back to the input (B, …) of a convolution."""
    kernel = kernel_shape(weight, settings)
    only_input = [True, False, False]
    plain = kernel is not None and kernel.stride == (1, 1) and kernel.groups == 1
    if kernel is not None and plain and weight.dtype is torch.float32:
        # A convolution with the turned kernel does the same, and in float32 it is faster.
        turned = weight.flip(2, 3).transpose(0, 1).contiguous()
        ends = zip(kernel.size, kernel.padding, kernel.dilation, strict=True)
        around = [dilation * (size - 1) - padding for size, padding, dilation in ends]
        if min(around) >= 0:
            return lambda tangents: torch.conv2d(
                tangents.flatten(0, 1), turned, None, 1, around, kernel.dilation
            ).view(len(tangents), *x.shape)

    def carry(tangents: Tensor) -> Tensor:
        like = x.new_empty(()).expand(math.prod(tangents.shape[:2]), *x.shape[1:])
        many = tangents.flatten(0, 1)
        back: Tensor = aten.convolution_backward(many, like, weight, bias, *settings, only_input)[0]
        return back.view(len(tangents), *x.shape)

    return carry


# The derivatives of pointwise operations by their two arguments.
SLOPES: dict[object, Callable[..., tuple[Tensor | float, Tensor | float]]] = {
    aten.add.Tensor: lambda a, b, alpha: (1.0, float(alpha)),
    aten.sub.Tensor: lambda a, b, alpha: (1.0, -float(alpha)),
    aten.mul.Tensor: lambda a, b, _: (b, a),
}
LINEAR = (
    "alias", "clone", "constant_pad_nd", "detach", "expand", "flip", "mean", "permute", "roll",
    "select", "slice", "squeeze", "t", "transpose", "unsqueeze", "_to_copy",
)  # fmt: skip
RULES: dict[str, Callable[[Operation], Carry]] = {
    **dict.fromkeys(LINEAR, carry_linear),
    **dict.fromkeys(("view", "_unsafe_view", "reshape"), carry_reshaped),
    "sum": carry_summed,
    "mm": carry_product,
    "bmm": carry_products,
    "convolution": carry_convolved,
    "convolution_backward": carry_convolved_back,
}
CONSTANT = frozenset(
    ("empty_like", "full_like", "ones_like", "zeros_like", "new_empty", "new_full", "new_ones",
     "new_zeros")
)  # fmt: skip
