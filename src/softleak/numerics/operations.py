"""One operation of a recorded gradient, and how it carries many tangents at once.

An operation at fixed arguments is linear in its tangents. Here are the quick ways for operations
that take most of the time; ``carry_by_jvp`` works for all others.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.func import jvp, vmap

aten = torch.ops.aten
KERNEL = 1  # the place of the kernel's gradient among what a convolution's gradient returns


@dataclass(frozen=True, eq=False)
class FactoredRows:
    """An orthonormal basis of the tangents of a product ``D Aᵀ``."""

    span: Tensor  # an orthonormal basis (out, M) of what ``D`` spans
    rest: Tensor  # an orthonormal basis (out, out − M) of what it does not
    right: Tensor  # an orthonormal basis (in, M) of what ``A`` spans

    @classmethod
    def of(cls, d: Tensor, a: Tensor, worth: float = 0.8) -> FactoredRows | None:
        """Return the basis at ``D`` (out, M) and ``A`` (in, M), if it has fewer rows."""
        out, places, entries = len(d), d.shape[1], len(a)
        rows = places * (out + entries - places)
        if places >= min(out, entries) or rows > worth * out * entries:
            return None
        left = torch.linalg.qr(d, mode="complete").Q
        right = torch.linalg.qr(a).Q
        return cls(left[:, :places].contiguous(), left[:, places:].contiguous(), right)

    @property
    def shape(self) -> tuple[int, int]:
        return (len(self.span), len(self.right))

    @property
    def count(self) -> int:
        """Return how many rows remain."""
        places = self.right.shape[1]
        return places * (sum(self.shape) - places)

    def __call__(self, many: Tensor) -> Tensor:
        """Return the coordinates (K, rows) of matrices (K, out, in)."""
        return self.joined(self.span.T @ many, self.rest.T @ (many @ self.right))

    def joined(self, top: Tensor, below: Tensor | None) -> Tensor:
        """Return the coordinates (K, rows) from those along ``D`` and those beside it, if any."""
        flat = top.flatten(1)
        if below is None:
            below = top.new_zeros(len(top), self.count - flat.shape[1])
        return torch.cat([flat, below.flatten(1)], 1)


def factored_parts(graph: fx.Graph) -> dict[fx.Node, int]:
    """Return the operations whose product is a part of the rows and nothing else."""
    output = next(node for node in graph.nodes if node.op == "output")
    found = {}
    for number, part in enumerate(output.args[0]):
        *between, source = _chain(part)
        alone = all(len(node.users) == 1 for node in (*between, source))
        turns = sum(node.target is aten.t.default for node in between)
        taken = [node.args[1] for node in between if node.target is operator.getitem]
        if source.target is aten.mm.default and alone and turns % 2 == 0:
            found[source] = number
        elif source.target is aten.convolution_backward.default and taken == [KERNEL]:
            single = all(len(node.users) == 1 for node in between)
            found.update({source: number} if single and not turns else {})
    return found


def _chain(part: fx.Node) -> Iterator[fx.Node]:
    """Yield a node and those before it that only turned it or took it from a tuple."""
    yield part
    while part.target in (aten.t.default, operator.getitem):
        part = part.all_input_nodes[0]
        yield part


Carry = Callable[..., Any]


# The derivatives of pointwise operations by their two arguments.
SLOPES: dict[object, Callable[..., tuple[Tensor | float, Tensor | float]]] = {
    aten.add.Tensor: lambda a, b, alpha: (1.0, float(alpha)),
    aten.sub.Tensor: lambda a, b, alpha: (1.0, -float(alpha)),
    aten.mul.Tensor: lambda a, b, _: (b, a),
}


@dataclass(frozen=True, eq=False)
class Operation:
    """One recorded operation at one iterate."""

    node: fx.Node  # the operation as it was recorded
    values: Mapping[fx.Node, Any]  # what every node before it is at the iterate
    value: Any  # what the operation returns there
    sources: tuple[fx.Node, ...]  # the nodes among its arguments that have tangents
    # in which the product that it computes is wanted; None: all entries
    thin: FactoredRows | None = None

    @property
    def args(self) -> tuple[Any, ...]:
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
        """Return the derivative of a pointwise operation by each source, entry by entry."""
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


PLANE = 2  # spatial dimensions of an image


@dataclass(frozen=True)
class KernelShape:
    """How the kernel of a two-dimensional convolution moves over an image."""

    size: tuple[int, int]  # the height and width of the kernel
    stride: tuple[int, int]  # the distance between its places
    padding: tuple[int, int]  # the zeros that are added on each side
    dilation: tuple[int, int]  # the distance between its entries
    groups: int = 1  # into how many groups the channels are split that do not see each other

    def of_delta(self, delta: Tensor, x: Tensor) -> Tensor:
        """Return the kernel's gradients (K, out, in / groups, h, w) for K sensitivities ``δ``."""
        right = self.patches(x)
        found = self.side_by_side(delta) @ right
        found = found.view(self.groups, len(delta), -1, right.shape[2]).transpose(0, 1)
        return found.reshape(len(delta), delta.shape[2], -1, *self.size)

    def of_input(self, x: Tensor, delta: Tensor) -> Tensor:
        """Return the kernel's gradients (K, out, in / groups, h, w) for K inputs."""
        patches = self._patches_around(delta, (x.shape[3], x.shape[4]))
        places = patches.shape[-1]
        right = patches.reshape(len(delta), self.groups, -1, places).permute(1, 0, 3, 2)
        found = self.side_by_side(x) @ right.reshape(self.groups, -1, right.shape[3])
        own = delta.shape[1] // self.groups
        found = found.view(self.groups, len(x), -1, own, *self.size).permute(1, 0, 3, 2, 4, 5)
        return found.flatten(1, 2)

    def patches(self, x: Tensor) -> Tensor:
        """Return what the kernel sees of inputs (B, in, H, W) at each place."""
        found = F.unfold(x, self.size, self.dilation, self.padding, self.stride)
        found = found.view(len(x), self.groups, -1, found.shape[2]).permute(1, 0, 3, 2)
        return found.reshape(self.groups, -1, found.shape[3])

    def side_by_side(self, many: Tensor) -> Tensor:
        """Return (K, B, C, H, W) as matrices (groups, K · C / groups, B · H · W)."""
        k, batch, channels = many.shape[:3]
        places = many.reshape(k, batch, self.groups, channels // self.groups, -1)
        return places.permute(2, 0, 3, 1, 4).reshape(self.groups, -1, batch * places.shape[-1])

    def _patches_around(self, delta: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the sensitivities that the kernel carries to each place, (B, out, h, w, H · W)."""
        apart = delta
        if self.stride != (1, 1):
            down, right = self.stride
            high, wide = delta.shape[2:]
            apart = delta.new_zeros(*delta.shape[:2], (high - 1) * down + 1, (wide - 1) * right + 1)
            apart[:, :, ::down, ::right] = delta
        sides: list[int] = []
        for axis in (1, 0):
            reach = self.dilation[axis] * (self.size[axis] - 1)
            before = reach - self.padding[axis]
            sides += [before, size[axis] + reach - apart.shape[2 + axis] - before]
        patches = F.unfold(F.pad(apart, sides), self.size, self.dilation)
        return patches.view(*delta.shape[:2], *self.size, -1).flip(2, 3)


def kernel_shape(weight: Tensor, settings: list[object]) -> KernelShape | None:
    """Return the kernel of a two-dimensional convolution with weights (out, in / groups, h, w).

    The settings are stride, padding, dilation, whether it is transposed, output padding and groups.
    None means that it is another convolution.
    """
    stride, padding, dilation, transposed, _, groups = settings
    if weight.dim() != 2 + PLANE or transposed or not isinstance(groups, int):
        return None
    size = _pair(weight.shape[2:])
    return KernelShape(size, _pair(stride), _pair(padding), _pair(dilation), groups)


def _pair(value: object) -> tuple[int, int]:
    first, *rest = torch.Size(value)  # type: ignore[arg-type]
    return (first, rest[0] if rest else first)


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
        return _summed(
            None if of_delta is None else kernel.of_delta(of_delta, x),
            None if of_input is None else kernel.of_input(of_input, delta),
        )

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


def carry_linear(operation: Operation) -> Carry:
    """Return how tangents pass through an operation that is linear in its only source."""
    return carry_by_jvp(operation) if len(operation.sources) > 1 else vmap(operation.run)


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
    return _summed(None if of_a is None else _times(of_a, b), None if of_b is None else a @ of_b)


def _summed(one: Tensor | None, other: Tensor | None) -> Tensor:
    """Return the sum of two tensors, one of which may be missing; the first may be written over."""
    if one is None or other is None:
        return cast(Tensor, other if one is None else one)
    return one.add_(other)


def _times(many: Tensor, one: Tensor) -> Tensor:
    """Return matrices (K, m, k) times a matrix (k, n)."""
    k, rows, inner = many.shape
    if not many.is_contiguous():  # a batch of products needs no copy
        return torch.bmm(many, one.expand(k, -1, -1))
    return (many.view(k * rows, inner) @ one).view(k, rows, -1)


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
    "convolution_backward": carry_convolved_back,
}
CONSTANT = frozenset(
    ("empty_like", "full_like", "ones_like", "zeros_like", "new_empty", "new_full", "new_ones",
     "new_zeros")
)  # fmt: skip
