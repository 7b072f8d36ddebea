"""Gradients of large linear layers as outer products, which are compared without being formed.

For one sample the gradient of a linear layer's weight is ``δ xᵀ``. If the gradient that was sent is
``σ u vᵀ`` with unit vectors u and v, the two differ in four parts, orthogonal to each other:

(δ·u)(x·v) − σ        (δ·u) x⊥        (x·v) δ⊥        δ⊥ x⊥ᵀ

where δ⊥ and x⊥ are what u and v leave of δ and x. Every distance that depends on lengths and angles
alone can be computed from these parts, in C + I numbers instead of C·I.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from softleak.head import float64_blocks, times_vector, vector_times
from softleak.matching.differentiable_model import DifferentiableModel


@dataclass(frozen=True)
class OuterProductSettings:
    """These settings say which gradients are compared as outer products.

    Attributes:
        fewest_entries: a smaller weight is compared entry by entry, which costs little.
        roundings: how many roundings a gradient that was sent may be off an outer product.
        tolerance: how far, relative to its size, the gradient of a layer may be off its own.
    """

    fewest_entries: int = 1 << 18
    roundings: float = 8.0
    tolerance: float = 1e-4


OUTER_PRODUCTS = OuterProductSettings()


@dataclass(frozen=True, eq=False)
class OuterProducts:
    """A model whose gradients of some linear layers are the factors δ and x, in a row (C + I,).

    Attributes:
        model: the function from input and label to gradient.
        layers: the names of these layers, each of which acts once, on one row.
    """

    model: DifferentiableModel
    layers: tuple[str, ...]

    @classmethod
    def of(cls, model: DifferentiableModel, shape: tuple[int, ...]) -> OuterProducts:
        """Return a model with the large linear layers whose gradients are outer products.

        A layer that acts twice, or whose weight is used elsewhere as well, shows on random input.
        """
        large = tuple(
            name
            for name, module in model.model.named_modules()
            if type(module) is nn.Linear
            and f"{name}.weight" in model.parameters
            and module.weight.numel() >= OUTER_PRODUCTS.fewest_entries
        )
        if not large:
            return cls(model, ())
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(shape, generator=generator).to(model.like)
        y = torch.rand(model.head.classes, generator=generator).to(model.like)
        try:
            whole, found = model.gradient(x, y), cls(model, large).gradient(x, y)
        except Exception:  # a layer that sees several rows, or none
            return cls(model, ())
        return cls(model, tuple(name for name in large if _same(found, whole, f"{name}.weight")))

    @property
    def weights(self) -> frozenset[str]:
        """The names of the weights whose gradients are factored."""
        return frozenset(f"{name}.weight" for name in self.layers)

    def gradient(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return ``∂L/∂θ`` by name, for one input and its label (C,).

        δ is the derivative by what is added to the output of a layer.
        """
        fixed = {n: p for n, p in self.model.parameters.items() if n in self.weights}
        moving = {n: p for n, p in self.model.parameters.items() if n not in fixed}
        added = {f"{n}.weight": x.new_zeros(len(fixed[f"{n}.weight"])) for n in self.layers}

        def loss(values: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            parameters = {**{n: values[n] for n in moving}, **fixed}
            with self._tapped(values) as seen:
                return self.model.loss(parameters, x, y), seen

        found, seen = self.model.differentiated(loss, {**moving, **added})
        return found | {name: torch.cat([found[name], own]) for name, own in seen.items()}

    @contextmanager
    def _tapped(self, added: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Have every layer add a vector to its output, and collect what each sees (I,)."""
        seen: dict[str, Tensor] = {}

        def tap(name: str, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            (row,) = inputs[0]
            if name in seen or row.ndim != 1:
                raise ValueError(f"{name} acts more than once")
            seen[name] = row
            return output + added[name]

        handles = [
            self.model.model.get_submodule(layer).register_forward_hook(
                partial(tap, f"{layer}.weight")
            )
            for layer in self.layers
        ]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()


def _same(found: Mapping[str, Tensor], whole: Mapping[str, Tensor], name: str) -> bool:
    """Return whether the factors of a gradient are those of the gradient."""
    rows = len(whole[name])
    off = (torch.outer(found[name][:rows], found[name][rows:]) - whole[name]).norm()
    return bool(off <= OUTER_PRODUCTS.tolerance * whole[name].norm())


def factored(gradients: Sequence[Tensor]) -> Tensor | None:
    """Return ``σ``, ``u`` and ``v`` of gradients (C, I), a row (1 + C + I,) for each.

    None if one of them is not an outer product to within rounding.
    """
    rows = []
    for G in gradients:
        tiny = torch.finfo(torch.double).tiny
        largest = G[G.abs().amax(1).argmax()].double()
        v = largest / largest.norm().clamp_min(tiny)
        u = times_vector(G, v)
        v = vector_times(u, G) / u.square().sum().clamp_min(tiny)
        v = v / v.norm().clamp_min(tiny)
        u = times_vector(G, v)
        sigma = u.norm()
        if _residual(G, u, v) > OUTER_PRODUCTS.roundings * torch.finfo(G.dtype).eps * sigma:
            return None
        rows.append(torch.cat([sigma[None], u / sigma.clamp_min(tiny), v]))
    return torch.stack(rows)


def _residual(G: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Return the length of ``G − u vᵀ``."""
    squares, row = [], 0
    for block in float64_blocks(G):
        own = u[row : row + len(block)]
        squares.append(torch.addmm(block, own[:, None], v[None], alpha=-1).square().sum())
        row += len(block)
    return torch.stack(squares).sum().sqrt()


def parts(ours: Tensor, theirs: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return vectors with the same distance and angle as two outer products.

    Args:
        ours: δ and x (C + I,).
        theirs: σ, u and v (1 + C + I,).
        classes: the number C of entries of δ.
    """
    delta, x = ours[:classes], ours[classes:]
    sigma, u, v = theirs[:1], theirs[1 : classes + 1], theirs[classes + 1 :]
    along_u, along_v = (delta * u).sum(), (x * v).sum()
    delta_rest, x_rest = delta - along_u * u, x - along_v * v
    square = delta_rest.square().sum() * x_rest.square().sum()
    far = square.clamp_min(torch.finfo(square.dtype).tiny).sqrt()
    mine = [(along_u * along_v)[None], along_u * x_rest, along_v * delta_rest, far[None]]
    return torch.cat(mine), torch.cat([sigma, torch.zeros_like(ours), torch.zeros_like(sigma)])
