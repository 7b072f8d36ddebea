"""This module says how convolutions and their gradients carry many tangents at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from softleak.matching.gauss_newton.factored_rows import FactoredRows
from softleak.matching.gauss_newton.recorded_operation import Carry, Operation, carry_by_jvp
from softleak.matching.gauss_newton.weight_gradients import KernelShape, kernel_shape

aten = torch.ops.aten


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
    to_kernel = _carry_to_kernel(kernel, delta, x, operation.thin)

    def carry(*tangents: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        own = None if of_delta is None else tangents[of_delta]
        whole = to_kernel(own, None if of_input is None else tangents[of_input])
        return (
            to_input(own) if own is not None and mask[0] else None,
            whole if mask[1] else None,
            own.sum((1, 3, 4)) if own is not None and mask[2] else None,
        )

    return carry


def _carry_to_kernel(
    kernel: KernelShape, delta: Tensor, x: Tensor, thin: FactoredRows | None
) -> Callable[[Tensor | None, Tensor | None], Tensor]:
    """Return how tangents of the sensitivity and of the input pass to the kernel's gradient."""

    def whole(of_delta: Tensor | None, of_input: Tensor | None, delta: Tensor = delta) -> Tensor:
        parts = [] if of_delta is None else [kernel.of_delta(of_delta, x)]
        parts += [] if of_input is None else [kernel.of_input(of_input, delta)]
        return parts[0] if len(parts) == 1 else parts[0].add_(parts[1])

    if thin is None:
        return whole
    along = _channels(thin.span, delta)
    patches = kernel.patches(x)[0] @ thin.right

    def carry(of_delta: Tensor | None, of_input: Tensor | None) -> Tensor:
        if of_delta is None:
            return thin.joined(whole(None, of_input, along), None)
        top = whole(_channels(thin.span, of_delta), of_input, along)
        below = kernel.side_by_side(_channels(thin.rest, of_delta))[0] @ patches
        return thin.joined(top, below.view(len(top), -1))

    return carry


def _channels(basis: Tensor, many: Tensor) -> Tensor:
    """Return the channels of images (…, C, H, W) in a basis (C, C') of them."""
    return (basis.T @ many.flatten(-2)).view(*many.shape[:-3], -1, *many.shape[-2:])


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
