"""This module writes gradients that are products of two thin matrices with fewer rows.

The gradient of a weight matrix is ``G = D Aᵀ`` with sensitivities ``D`` (out, M) and inputs ``A``
(in, M) at M places. Its tangents ``ΔD Aᵀ + D ΔAᵀ`` lie in a space of ``M (out + in − M)``
dimensions. If places are few, that is far less than ``out · in``. In an orthonormal basis of the
space the normal equations are the same as those of all entries.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, fx

aten = torch.ops.aten
KERNEL = 1  # the place of the kernel's gradient among what a convolution's gradient returns


@dataclass(frozen=True, eq=False)
class FactoredRows:
    """This is an orthonormal basis of the tangents of a product ``D Aᵀ``.

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

    Args:
        graph: the recorded operations.

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
