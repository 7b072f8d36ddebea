"""Compute Jacobians by tangents of the gradient, in chunks, of a network in both precisions."""

from __future__ import annotations

import math
import operator
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Generic, NamedTuple

import torch
from torch import Tensor, fx
from torch._decomp import get_decompositions
from torch.func import functionalize, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from softleak.core.subject import Subject
from softleak.matching.gauss_newton.equations import BatchFunction, Function, RowFunction
from softleak.matching.problems import DifferentiableModel, loss_of
from softleak.numerics.operations import (
    CONSTANT,
    RULES,
    Carry,
    FactoredRows,
    Operation,
    carry_by_jvp,
    factored_parts,
    thin_basis,
)

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

    An exception of any kind says that the operations depend on the values.
    """

    apart: Any = get_decompositions(TAKEN_APART)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorded = make_fx(functionalize(lambda z: list(rows(z))), decomposition_table=apart)(z)
    recorded.graph.eliminate_dead_code()
    graph: fx.Graph = recorded.graph
    return graph


class TangentStep(NamedTuple):
    """How the tangents of one node follow from those of others."""

    node: fx.Node  # the node whose tangents are computed
    sources: tuple[fx.Node, ...]  # the nodes whose tangents it needs
    carry: Carry  # how they are computed


@dataclass(eq=False)
class LinearRows:
    """The linear map from tangents of the unknowns to tangents of the rows, at an iterate."""

    source: fx.Node  # the node of the unknowns
    steps: list[TangentStep] = field(default_factory=list)  # what is computed, in order
    parts: list[fx.Node | None] = field(default_factory=list)  # None for one that is constant
    thin: dict[int, FactoredRows] = field(default_factory=dict)  # parts in a basis of fewer rows

    def __call__(self, tangents: Tensor) -> list[Tensor | None]:
        """Return the tangents (K, …) of every part of the rows, for tangents (K, n)."""
        held: dict[fx.Node, Any] = {self.source: tangents}
        last = {source: step for step in self.steps for source in step.sources}
        for step in self.steps:
            held[step.node] = step.carry(*(held[source] for source in step.sources))
            for source in step.sources:
                if last[source] is step and source not in self.parts:
                    held.pop(source, None)  # nothing needs it any more
        return [None if part is None else held[part] for part in self.parts]


class Linearisation:
    """Walk over recorded operations at an iterate, and collect what tangents pass through.

    A pointwise operation is not a step. Its tangents are a sum of factors times tangents of nodes
    before it, the blend. The sum is only computed where another operation needs it. If ``thin``,
    gradients that are products of thin matrices are written with fewer rows.
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
        if node.target is operator.getitem:
            carry: Carry = operator.itemgetter(node.args[1])
        else:
            carry = RULES.get(name, carry_by_jvp)(operation)
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


Product = Callable[[Tensor], Sequence[Tensor | None]]


@dataclass(eq=False)
class TangentProducts:
    """Multiply with the Jacobian of a batch function, and with its transpose.

    The operations of the function are recorded once, and chunks of tangents pass through what is
    linear of them at an iterate. Where the recording fails, or is not the same as ``jvp`` of the
    function itself, tangents go through ``jvp`` under ``vmap``.
    """

    function: RowFunction  # the batch function, in the dtype of the products
    memory: int  # the bytes that a chunk may take
    most: int = 256  # the largest number of tangents in a chunk; beyond it a chunk is not faster
    copies: int = 6  # of its rows and all layers' outputs that a tangent on its way holds
    alike: float = 1e4  # how far the recording may be from ``jvp``, in roundings
    floor: float = 0.1  # the part of the usual size that a group of smaller tangents counts as
    _recorded: fx.Graph | None = field(default=None, init=False, repr=False)
    _tried: bool = field(default=False, init=False, repr=False)

    @cached_property
    def chunk(self) -> int:
        """Return how many tangents are carried at once."""
        entries = sum(self.function.sizes.values()) + self.function.activations
        room = self.memory // (self.copies * entries * self.function.like.element_size())
        n = self.function.unknowns
        count = math.ceil(n / max(1, min(self.most, room, n)))
        return math.ceil(n / count)

    @property
    def recorded(self) -> bool:
        """Return whether tangents pass through recorded operations."""
        return self._recorded is not None

    def jacobian(
        self, z: Tensor, weight: Tensor, kept: Tensor | None, out: Tensor | None = None
    ) -> Tensor:
        """Return the transposed Jacobian (n, R'), each row of the equations times its weight (R,).

        The rows of the indices ``kept`` (R',) are kept; None means all. ``out`` is a Jacobian of
        before, whose memory is used again.
        """
        like = self.function.like
        groups = list(self._groups(weight.to(like), kept))
        return self._filled(self._at(z.to(like))[0], groups, out)

    def reduced(
        self, z: Tensor, r: Tensor, weight: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a transposed Jacobian (n, R') and residuals (R',) with the same normal equations.

        Gradients that are products of thin matrices are written in a basis of fewer rows. The
        residuals ``r`` (R,) are weighted, and all entries of a gradient have the same weight.
        """
        like = self.function.like
        product, thin = self._at(z.to(like), thin=True)
        parts = list(r.to(like).split_with_sizes(list(self.function.sizes.values())))
        groups = list(self._groups(weight.to(like), None))
        for number, basis in thin.items():
            parts[number] = basis(parts[number].view(1, *basis.shape))[0]
            groups[number] = (groups[number][0][: basis.count], None)
        return self._filled(product, groups, out), torch.cat(parts)

    def _filled(
        self, product: Product, groups: Sequence[tuple[Tensor, Tensor | None]], out: Tensor | None
    ) -> Tensor:
        """Return the transposed Jacobian (n, R') of groups of rows, chunk by chunk."""
        like, n, chunk = self.function.like, self.function.unknowns, self.chunk
        keep_freed_memory()
        if out is None:
            out = like.new_empty(n, sum(len(own) for own, _ in groups))
        with torch.no_grad():
            for begin in range(0, n, chunk):
                end = min(begin + chunk, n)
                tangents = like.new_zeros(end - begin, n)
                tangents[:, begin:end].fill_diagonal_(1)
                column = 0
                for found, (own, chosen) in zip(product(tangents), groups, strict=True):
                    place = out[begin:end, column : column + len(own)]
                    if found is None:
                        place.zero_()
                    else:
                        flat = found.reshape(end - begin, -1)
                        torch.mul(flat if chosen is None else flat[:, chosen], own, out=place)
                    column += len(own)
        return out

    def _groups(
        self, weight: Tensor, kept: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the weights of each group of rows that are kept, and which rows these are."""
        begin = 0
        for size in self.function.sizes.values():
            own, chosen = weight[begin : begin + size], None
            if kept is not None:
                chosen = kept[(kept >= begin) & (kept < begin + size)] - begin
                own = own[chosen]
            yield own, chosen
            begin += size

    def along(self, z: Tensor, v: Tensor) -> Tensor:
        """Return ``J v`` (R,), not weighted."""
        like = self.function.like
        product: Tensor = jvp(self.function.rows, (z.to(like),), (v.to(like),))[1]
        return product

    def against(self, z: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the function from ``u`` (R,) to ``Jᵀ u`` (n,), not weighted."""
        like = self.function.like
        back = vjp(self.function.rows, z.to(like))[1]
        return lambda u: back(u.to(like))[0]

    def independent_rows(self, z: Tensor) -> dict[str, int]:
        """Return how many numbers each gradient holds at most that do not follow from each other.

        A product of thin matrices holds fewer than its entries.
        """
        sizes, names = self.function.sizes, self.function.names
        thin = self._at(z.to(self.function.like), thin=True)[1]
        counts = {name: sizes[name] for name in names}
        return counts | {names[number]: basis.count for number, basis in thin.items()}

    def _at(self, z: Tensor, thin: bool = False) -> tuple[Product, Mapping[int, FactoredRows]]:
        """Return how tangents (K, n) pass, and the bases of groups in fewer rows, by number."""
        if not self._tried:
            self._tried, self._recorded = True, self._record(z)
        if self._recorded is not None:
            rows = Linearisation(self._recorded, z, thin).rows
            return rows, rows.thin
        return lambda tangents: self._vectorised(z, tangents), {}

    def _record(self, z: Tensor) -> fx.Graph | None:
        """Return the operations of the function, if tangents through them are those of ``jvp``."""
        generator = torch.Generator().manual_seed(0)
        v = torch.randn(z.shape, generator=generator, dtype=torch.double).to(z)
        try:
            graph = record_operations(self.function.groups, z)
            found = Linearisation(graph, z).rows(v[None])
        except Exception:  # control flow by data, an operation that cannot be recorded
            return None
        known = self.along(z, v)
        limit, usual = self.alike * torch.finfo(z.dtype).eps, _size(known)
        parts = known.split_with_sizes(list(self.function.sizes.values()))
        for one, own in zip(found, parts, strict=True):
            off = own if one is None else own - one.reshape(-1)
            # A gradient that is always zero has a tangent of mere rounding.
            if not _size(off) <= limit * max(_size(own), self.floor * usual):
                return None
        return graph

    def _vectorised(self, z: Tensor, tangents: Tensor) -> list[Tensor | None]:
        """Return the tangents of every group by ``jvp``, at once or one after the other."""
        along = partial(jvp, self.function.groups, (z,))
        try:
            return list(vmap(lambda v: along((v,))[1])(tangents))
        except Exception:  # control flow by data, an operation without a batched form
            each = [along((v,))[1] for v in tangents]
            return [torch.stack(group) for group in zip(*each, strict=True)]


def keep_freed_memory(size: int = 31 << 20) -> None:
    """Have the allocator keep the memory of one chunk for the next one.

    Otherwise glibc returns it after every chunk, and a tenth of the time of a Jacobian goes into
    getting it back. It keeps twice the size of the largest block that was freed, if that was below
    32 MiB. This block is never written, so that it costs nothing.
    """
    torch.empty(size, dtype=torch.uint8)


def _size(part: Tensor) -> float:
    return float(part.square().mean().sqrt())


@dataclass(eq=False)
class NewtonModel(Generic[Function]):
    """What a client sends in both precisions, with recorded products."""

    exact: Function  # in float64
    quick: Function  # in float32
    client: Function  # in the dtype in which clients compute
    memory: int  # the bytes that products and the Jacobian may take together
    _products: dict[torch.dtype, TangentProducts] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(
        subject: Subject, names: tuple[str, ...], shape: tuple[int, ...], memory: int
    ) -> NewtonModel[BatchFunction]:
        """Copy the model of a subject for batches of shape (B, …)."""

        def copied(dtype: torch.dtype) -> BatchFunction:
            loss = subject.once(loss_of)
            model = DifferentiableModel.of(subject.model, subject.head, dtype, loss)
            return BatchFunction(model, names, shape)

        own = next(iter(subject.parameters.values())).dtype
        exact, quick = copied(torch.float64), copied(torch.float32)
        client = {torch.float64: exact, torch.float32: quick}.get(own) or copied(own)
        return NewtonModel(exact, quick, client, memory)

    def products(self, dtype: torch.dtype) -> TangentProducts:
        """Return products with the Jacobian in float32 or float64."""
        if dtype not in self._products:
            function = self.quick if dtype is torch.float32 else self.exact
            self._products[dtype] = TangentProducts(function, self.memory // 4)
        return self._products[dtype]

    def kept(self) -> Tensor | None:
        """Return the indices of rows for which a Jacobian fits in memory; None means all."""
        sizes = list(self.exact.sizes.values())
        room = self.memory // 2 // (8 * self.exact.unknowns)
        if sum(sizes) <= room:
            return None
        fewer = range(2, max(sizes) + 1)
        most = 1 + bisect_right(fewer, room, key=lambda m: sum(min(size, m) for size in sizes))
        generator = torch.Generator().manual_seed(0)
        chosen, begin = [], 0
        for size in sizes:
            own = torch.arange(size)
            if size > most:
                own = torch.randperm(size, generator=generator)[:most].sort().values
            chosen.append(own + begin)
            begin += size
        return torch.cat(chosen)


BatchModel = NewtonModel[BatchFunction]
