"""One operation of a recorded gradient, at an iterate."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import jvp, vmap

aten = torch.ops.aten
KERNEL = 1  # the place of the kernel's gradient among what a convolution's gradient returns


@dataclass(frozen=True, eq=False)
class FactoredRows:
    """An orthonormal basis of the tangents of a product ``D Aᵀ``.

    Attributes:
        span: an orthonormal basis (out, M) of what ``D`` spans.
        rest: an orthonormal basis (out, out − M) of what it does not.
        right: an orthonormal basis (in, M) of what ``A`` spans.
    """

    span: Tensor
    rest: Tensor
    right: Tensor

    @classmethod
    def of(cls, d: Tensor, a: Tensor, worth: float = 0.8) -> FactoredRows | None:
        """Return the basis at ``D`` (out, M) and ``A`` (in, M), if it has fewer rows.

        Args:
            d: the sensitivities.
            a: the inputs.
            worth: a basis that has more than this part of all entries is not worth its while.
        """
        out, places, entries = len(d), d.shape[1], len(a)
        rows = places * (out + entries - places)
        if places >= min(out, entries) or rows > worth * out * entries:
            return None
        left = torch.linalg.qr(d, mode="complete").Q
        right = torch.linalg.qr(a).Q
        return cls(left[:, :places].contiguous(), left[:, places:].contiguous(), right)

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape (out, in) of the gradient."""
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
    """Return the operations whose product is a part of the rows and nothing else.

    Returns:
        Matrix products and gradients of convolutions, each with the number of its part.
    """
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
aten = torch.ops.aten


# The derivatives of pointwise operations by their two arguments.
SLOPES: dict[object, Callable[..., tuple[Tensor | float, Tensor | float]]] = {
    aten.add.Tensor: lambda a, b, alpha: (1.0, float(alpha)),
    aten.sub.Tensor: lambda a, b, alpha: (1.0, -float(alpha)),
    aten.mul.Tensor: lambda a, b, _: (b, a),
}


@dataclass(frozen=True, eq=False)
class Operation:
    """One recorded operation at one iterate.

    Attributes:
        node: the operation as it was recorded.
        values: what every node before it is at the iterate.
        value: what the operation returns there.
        sources: the nodes among its arguments that have tangents.
        thin: the basis in which the product that it computes is wanted; None means all entries.
    """

    node: fx.Node
    values: Mapping[fx.Node, Any]
    value: Any
    sources: tuple[fx.Node, ...]
    thin: FactoredRows | None = None

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
