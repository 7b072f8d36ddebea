"""This module records what a client computes as plain operations, and linearises them.

Operations run once for each iterate. Tangents pass through what is linear then: matrix products,
convolutions and, between them, factors entry by entry. A chain of pointwise operations (activation,
normalisation, their derivatives, sums) is one factor for each tangent that enters it.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import get_decompositions
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from softleak.matching.gauss_newton.factored_rows import FactoredRows, factored_parts
from softleak.matching.gauss_newton.recorded_operation import Carry, Operation, carry_by_jvp
from softleak.matching.gauss_newton.tangent_rules import CONSTANT, RULES, thin_basis

aten = torch.ops.aten
# These consist of pointwise operations, sums and products, which pass tangents on quickly.
TAKEN_APART = (
    aten.addmm, aten.native_batch_norm, aten.native_batch_norm_backward, aten.native_layer_norm,
    aten.native_layer_norm_backward, aten._softmax, aten._softmax_backward_data,
    aten._log_softmax, aten._log_softmax_backward_data,
)  # fmt: skip
Factor = Tensor | float


def record_operations(rows: Callable[[Tensor], Sequence[Tensor]], z: Tensor) -> fx.Graph:
    """Return the operations that lead from unknowns (n,) to parts of the rows.

    Raises:
        Exception: of any kind, if the operations depend on the values.
    """

    def plain(z: Tensor) -> list[Tensor]:
        return list(rows(z))

    apart: Any = get_decompositions(TAKEN_APART)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorded = make_fx(functionalize(plain), decomposition_table=apart)(z)
    recorded.graph.eliminate_dead_code()
    graph: fx.Graph = recorded.graph
    return graph


@dataclass(frozen=True, eq=False)
class TangentStep:
    """This computes the tangents of one node from those of others, and lets go of some.

    Attributes:
        node: the node whose tangents are computed.
        sources: the nodes whose tangents it needs.
        carry: how they are computed.
    """

    node: fx.Node
    sources: tuple[fx.Node, ...]
    carry: Carry


@dataclass(eq=False)
class LinearRows:
    """This is the linear map from tangents of the unknowns to tangents of the rows, at an iterate.

    Attributes:
        source: the node of the unknowns.
        steps: what is computed, in order.
        parts: the nodes of the parts of the rows; None for a part that is constant.
        thin: the parts that are written in a basis of fewer rows, by number.
    """

    source: fx.Node
    steps: list[TangentStep] = field(default_factory=list)
    parts: list[fx.Node | None] = field(default_factory=list)
    thin: dict[int, FactoredRows] = field(default_factory=dict)

    def __call__(self, tangents: Tensor) -> list[Tensor | None]:
        """Return the tangents (K, …) of every part of the rows, for tangents (K, n)."""
        held: dict[fx.Node, Any] = {self.source: tangents}
        needed: dict[fx.Node, int] = {}
        for index, step in enumerate(self.steps):
            needed.update(dict.fromkeys(step.sources, index))
        needed.update({part: len(self.steps) for part in self.parts if part is not None})
        for index, step in enumerate(self.steps):
            given = [held[source] for source in step.sources]
            held[step.node] = step.carry(*given)
            for source in step.sources:
                if needed[source] == index:
                    held.pop(source, None)
        return [None if part is None else held[part] for part in self.parts]


class Linearisation:
    """This walks over recorded operations at an iterate, and collects what tangents pass through.

    A pointwise operation is not a step. Its tangents are a sum of factors times tangents of nodes
    before it, the blend. The sum is only computed where another operation needs it.

    Args:
        graph: the recorded operations.
        z: the iterate (n,).
        thin: whether gradients that are products of thin matrices are written with fewer rows.
    """

    def __init__(self, graph: fx.Graph, z: Tensor, thin: bool = False) -> None:
        self.values: dict[fx.Node, Any] = {}
        self.blends: dict[fx.Node, dict[fx.Node, Factor]] = {}
        first = next(node for node in graph.nodes if node.op == "placeholder")
        self.rows = LinearRows(first)
        self.products = factored_parts(graph) if thin else {}
        self.values[first], self.blends[first] = z, {first: 1.0}
        with torch.no_grad():
            for node in graph.nodes:
                self._visit(node)

    def _visit(self, node: fx.Node) -> None:
        if node.op == "get_attr":
            owner: Any = node.graph.owning_module
            self.values[node] = operator.attrgetter(str(node.target))(owner)
        elif node.op == "call_function":
            self._call(node)
        elif node.op == "output":
            parts: Any = node.args[0]
            self.rows.parts = [self._whole(part) if part in self.blends else None for part in parts]

    def _call(self, node: fx.Node) -> None:
        sources = tuple(source for source in node.all_input_nodes if source in self.blends)
        operation = Operation(node, self.values, None, ())
        value = self.values[node] = operation.run()
        name = str(getattr(node.target, "overloadpacket", node.target)).rpartition(".")[2]
        if not sources or name in CONSTANT or not _differentiable(value):
            return
        operation = Operation(node, self.values, value, sources)
        if node in self.products and (basis := thin_basis(operation)):
            self.rows.thin[self.products[node]] = basis
            operation = replace(operation, thin=basis)
        if torch.Tag.pointwise in getattr(node.target, "tags", ()):
            self._blend(operation)
            return
        taken = node.target is operator.getitem
        carry = _taken(operation) if taken else RULES.get(name, carry_by_jvp)(operation)
        whole = tuple(self._whole(source) for source in sources)
        self.rows.steps.append(TangentStep(node, whole, carry))
        self.blends[node] = {node: 1.0}

    def _blend(self, operation: Operation) -> None:
        """Write the tangents of a pointwise operation as a blend of those before it."""
        blend: dict[fx.Node, Factor] = {}
        for source, slope in zip(operation.sources, operation.slopes(), strict=True):
            for base, factor in self.blends[source].items():
                blend[base] = blend.get(base, 0.0) + slope * factor
        if blend:
            self.blends[operation.node] = blend

    def _whole(self, node: fx.Node) -> fx.Node:
        """Have the tangents of a node computed, and return it."""
        blend = self.blends[node]
        if set(blend) != {node}:
            blended = _blended(list(blend.values()), self.values[node].shape)
            self.rows.steps.append(TangentStep(node, tuple(blend), blended))
            self.blends[node] = {node: 1.0}
        return node


def _differentiable(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point()
    return isinstance(value, (tuple, list))


def _taken(operation: Operation) -> Carry:
    index = operation.node.args[1]
    return lambda tangents: tangents[index]


def _blended(factors: Sequence[Factor], shape: torch.Size) -> Carry:
    """Return the sum of factors times tangents, broadcast to a shape."""

    def carry(*tangents: Tensor) -> Tensor:
        total: Tensor | None = None
        for factor, own in zip(factors, tangents, strict=True):
            missing = len(shape) - (own.dim() - 1)
            wide = own.reshape(len(own), *[1] * missing, *own.shape[1:])
            if isinstance(factor, Tensor):
                total = wide * factor if total is None else torch.addcmul(total, wide, factor)
            else:
                scaled = wide if factor == 1.0 else wide * factor
                total = scaled if total is None else total + scaled
        if total is None:
            raise ValueError("expected at least one tangent")
        return total.expand(-1, *shape)

    return carry
