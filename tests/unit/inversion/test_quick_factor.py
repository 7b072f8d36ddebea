"""The structure of a normal matrix, against the matrix itself."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from softleak.inversion.conv.layer import solve_quickly, solve_thoroughly
from softleak.inversion.conv.rows import (
    ApproximateInverse,
    Geometry,
    Rows,
    approximate_inverse,
    low_rank,
    normal_matrix,
    single_precision,
)

LAYERS = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 5, "stride": 2, "padding": 2},
    {"kernel_size": 3, "dilation": 2, "padding": 2},
    {"kernel_size": 2, "stride": 3},
    {"kernel_size": (1, 3), "padding": (0, 1), "stride": (1, 2)},
    {"kernel_size": (4, 2), "padding": (3, 0), "stride": (3, 1), "dilation": (1, 2)},
]


def rows(size: tuple[int, int] = (7, 6), outputs: int = 12, **options) -> Rows:
    """Of an input with two channels, its errors all unlike; the input is that of seed 1."""
    torch.manual_seed(1)
    layer = nn.Conv2d(2, outputs, **options).double()
    geometry, kernel = Geometry.of(layer, size), layer.weight.detach()
    x = torch.randn(2, *size).double()
    z = geometry.forward(x[None], kernel)[0]
    delta = torch.randn_like(z)
    z_error, still = 1e-6 * (0.1 + torch.rand_like(z)), torch.zeros_like(z)
    seen = geometry.patches(x)
    g = delta.flatten(1) @ torch.cat([seen, torch.ones_like(seen[:1])]).T
    g_error = torch.full_like(g, 1e-5)
    noisy = z + z_error * torch.randn_like(z), g + g_error * torch.randn_like(g)
    return Rows(
        geometry, kernel, noisy[0], z_error, delta, still, noisy[1], g_error, prior_size=10.0
    )


def inverse(given: Rows, ridge: Tensor) -> Tensor:
    zero = torch.zeros(math.prod(given.shape)).double()
    return torch.linalg.inv(normal_matrix(given, zero) + ridge.repeat(given.shape[0]).diag())


@pytest.mark.parametrize("options", LAYERS, ids=str)
@pytest.mark.parametrize("kind", [single_precision, low_rank])
def test_both_factorisations_are_of_the_normal_matrix(kind, options):
    given = rows(**options)
    diagonal = given.normal_diagonal().view(2, -1).amax(0)
    ridge = 1e-3 * (diagonal + diagonal.max())
    expected = inverse(replace(given, prior_size=math.inf), ridge)
    found: ApproximateInverse | None = kind(given, ridge)
    assert found is not None
    columns = torch.stack([found.solve(unit) for unit in torch.eye(len(expected)).double()])
    assert float((columns - expected).norm() / expected.norm()) < 1e-3
    spread = found.draws(64).square().mean(0) / expected.diagonal()
    assert 0.8 < float(spread.mean()) < 1.25


def test_the_cheaper_factorisation_is_chosen():
    many, few = rows(kernel_size=3, padding=1), rows(kernel_size=3, stride=3, outputs=4)
    ridge = torch.ones(42).double()
    for given, expected in ((many, single_precision), (few, low_rank)):
        right = torch.randn(84).double()
        chosen = approximate_inverse(given, ridge).solve(right)
        assert torch.equal(chosen, expected(given, ridge).solve(right))


@pytest.mark.parametrize("stride", [1, 2])
def test_the_quick_solution_is_the_thorough_one(stride):
    given = rows((8, 8), kernel_size=3, stride=stride, padding=1)
    fast, slow = solve_quickly(given), solve_thoroughly(given)
    assert fast.determined
    assert float(((fast.value - slow.value) / slow.error).abs().max()) < 0.1
    assert 0.9 < float((fast.error / slow.error).mean()) < 1.1
    assert fast.residual == pytest.approx(slow.residual, rel=1e-3)


def test_what_rows_do_not_tell_is_not_called_determined():
    given = rows((8, 8), outputs=2, kernel_size=3, stride=4)
    assert not solve_quickly(given).determined


def test_rows_that_say_nothing_are_not_an_error():
    given = rows(kernel_size=3, padding=1)
    silent = replace(
        given,
        z_error=torch.full_like(given.z, torch.inf),
        g_error=torch.full_like(given.g, torch.inf),
    )
    assert not solve_quickly(silent).determined
