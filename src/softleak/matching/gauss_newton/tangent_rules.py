"""This module says how operations of a recorded gradient carry many tangents at once.

An operation at fixed arguments is linear in its tangents. Here are the quick ways for operations
that take most of the time; ``carry_by_jvp`` works for all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vmap

from softleak.matching.gauss_newton.factored_rows import FactoredRows
from softleak.matching.gauss_newton.kernel_tangents import carry_convolved, carry_convolved_back
from softleak.matching.gauss_newton.recorded_operation import Carry, Operation, carry_by_jvp
from softleak.matching.gauss_newton.weight_gradients import PLANE, kernel_shape

aten = torch.ops.aten


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


def carry_turned(operation: Operation) -> Carry:
    """Return how tangents pass through an exchange of two axes; rows in a basis are not turned."""
    axes = operation.value.dim()
    first, second = (*operation.args[1:], 0, 1)[:2]
    if axes < PLANE:
        return lambda tangents: tangents
    one, other = first % axes + 1, second % axes + 1
    return lambda tangents: tangents if tangents.dim() <= axes else tangents.transpose(one, other)


def carry_moments(operation: Operation) -> Carry:
    """Return how tangents pass through a variance and a mean over axes."""
    x, axes = operation.args[:2]
    correction, kept = operation.node.kwargs.get("correction"), operation.node.kwargs.get("keepdim")
    if len(operation.args) > PLANE or not axes or not kept:
        return carry_by_jvp(operation)
    own = [axis % x.dim() for axis in axes]
    count = math.prod(x.shape[axis] for axis in own)
    scaled = 2 * (x - operation.value[1]) / (count - (1 if correction is None else correction))
    shifted = [axis + 1 for axis in own]

    def carry(tangents: Tensor) -> tuple[Tensor, Tensor]:
        return (tangents * scaled).sum(shifted, True), tangents.mean(shifted, True)

    return carry


def carry_product(operation: Operation) -> Carry:
    """Return how tangents pass through a matrix product ``A B``, as one large product."""
    a, b = operation.args[:2]
    left, right = operation.source_at(0), operation.source_at(1)

    def carry(*tangents: Tensor) -> Tensor:
        return _product_rule(
            None if left is None else tangents[left], b,
            a, None if right is None else tangents[right],
        )  # fmt: skip

    if (thin := operation.thin) is None:
        return carry
    span, rest, along, beside = thin.span.T, thin.rest.T, thin.span.T @ a, b @ thin.right

    def carry_thin(*tangents: Tensor) -> Tensor:
        of_a = None if left is None else tangents[left]
        of_b = None if right is None else tangents[right]
        top = _product_rule(None if of_a is None else span @ of_a, b, along, of_b)
        below = None if of_a is None else _times(rest @ of_a, beside)
        return thin.joined(top, below)

    return carry_thin


def _product_rule(of_a: Tensor | None, b: Tensor, a: Tensor, of_b: Tensor | None) -> Tensor:
    """Return ``ΔA B + A ΔB`` for tangents (K, m, k) and (K, k, n), one of which may be missing."""
    parts = ([] if of_a is None else [_times(of_a, b)]) + ([] if of_b is None else [a @ of_b])
    return parts[0] if len(parts) == 1 else parts[0].add_(parts[1])


def _times(many: Tensor, one: Tensor) -> Tensor:
    """Return matrices (K, m, k) times a matrix (k, n)."""
    k, rows, inner = many.shape
    if not many.is_contiguous():  # a batch of products needs no copy
        return torch.bmm(many, one.expand(k, -1, -1))
    return (many.view(k * rows, inner) @ one).view(k, rows, -1)


def carry_products(operation: Operation) -> Carry:
    """Return how tangents pass through a batch of matrix products."""
    a, b = operation.args[:2]
    left, right = operation.source_at(0), operation.source_at(1)

    def carry(*tangents: Tensor) -> Tensor:
        parts: list[Tensor] = [] if left is None else [tangents[left] @ b]
        parts += [] if right is None else [a @ tangents[right]]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    return carry


def thin_basis(operation: Operation) -> FactoredRows | None:
    """Return a basis of few rows for what a matrix product or a convolution's gradient sends."""
    if operation.node.target is aten.mm.default:
        a, b = operation.args[:2]
        return FactoredRows.of(a, b.T)
    delta, x, weight, _, *settings, _ = operation.args
    kernel = kernel_shape(weight, settings)
    if kernel is None or kernel.groups > 1 or operation.source_at(2) is not None:
        return None
    return FactoredRows.of(kernel.side_by_side(delta[None])[0], kernel.patches(x)[0].T)


LINEAR = (
    "alias", "clone", "constant_pad_nd", "detach", "expand", "flip", "mean", "permute", "roll",
    "select", "slice", "squeeze", "unsqueeze", "_to_copy",
)  # fmt: skip
RULES: dict[str, Callable[[Operation], Carry]] = {
    **dict.fromkeys(LINEAR, carry_linear),
    **dict.fromkeys(("view", "_unsafe_view", "reshape"), carry_reshaped),
    **dict.fromkeys(("t", "transpose"), carry_turned),
    "sum": carry_summed,
    "var_mean": carry_moments,
    "mm": carry_product,
    "bmm": carry_products,
    "convolution": carry_convolved,
    "convolution_backward": carry_convolved_back,
}
CONSTANT = frozenset(
    ("empty_like", "full_like", "ones_like", "zeros_like", "new_empty", "new_full", "new_ones",
     "new_zeros")
)  # fmt: skip
