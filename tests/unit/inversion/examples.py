"""Small problems with known solutions, for tests of the parts of an inversion."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import softleak as sl
from softleak.inversion.conv.rows import Geometry, Rows
from softleak.inversion.steps import LayerState

CONVOLUTIONS = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 5, "stride": 2, "padding": 2},
    {"kernel_size": 3, "dilation": 2, "padding": 2},
    {"kernel_size": 2, "stride": 3},
    {"kernel_size": (1, 3), "padding": (0, 1), "stride": (1, 2)},
    {"kernel_size": (4, 2), "padding": (3, 0), "stride": (3, 1), "dilation": (1, 2)},
]
NO_GRADIENTS = sl.GradientShare({})


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.double)


def state(value: Tensor, error: float = 1e-9, delta: Tensor | None = None) -> LayerState:
    """A value with independent errors, beside an exact δ."""
    d = torch.ones_like(value) if delta is None else delta
    return LayerState.uncoupled(value, torch.full_like(value, error), d, 0 * d)


def exact_rows(
    size: tuple[int, int] = (5, 4), outputs: int = 3, curved: bool = True, **options: object
) -> tuple[Rows, Tensor]:
    """Rows that an input meets exactly, and that input (n,)."""
    torch.manual_seed(1)
    layer = nn.Conv2d(2, outputs, **options).double()
    geometry, kernel = Geometry.of(layer, size), layer.weight.detach()
    x = normal(2, *size)
    z = geometry.forward(x[None], kernel)[0]
    delta = normal(*z.shape, seed=1)
    patches = geometry.patches(x)
    g = delta.flatten(1) @ torch.cat([patches, torch.ones_like(patches[:1])]).T
    g_error = (0.5 + torch.rand(outputs, 1).double()).expand_as(g)
    z_error = 0.5 + torch.rand_like(z)
    curvature = normal(*z.shape, seed=2) if curved else torch.zeros_like(z)
    return Rows(geometry, kernel, z, z_error, delta, curvature, g, g_error), x.flatten()


def conv_share(
    layer: nn.Conv2d, x: Tensor, delta: Tensor, noise: float = 0.0, seed: int = 0
) -> sl.GradientShare:
    """Gradients of ``Σ δ · (K ∗ x + b)`` by autograd and noise, of a layer named "conv"."""
    names = [name for name, _ in layer.named_parameters()]
    found = torch.autograd.grad((layer(x[None])[0] * delta).sum(), list(layer.parameters()))
    noisy = {
        f"conv.{name}": g + noise * normal(*g.shape, seed=seed + i).to(g)
        for i, (name, g) in enumerate(zip(names, found, strict=True))
    }
    share = sl.GradientShare(noisy)
    return share.expecting(noise) if noise else share
