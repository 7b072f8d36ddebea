from __future__ import annotations

import math

import pytest
import torch

from softleak.labels.evidence.relation import least_squares, log_laplace, log_normal

from .known_case import Known

CASE = Known.of(torch.rand(4, 30, generator=torch.Generator().manual_seed(0), dtype=torch.double))


def test_least_squares_finds_the_scalar_within_its_error():
    direction = torch.randn(4, 50, generator=torch.Generator().manual_seed(2)).double()
    g = (CASE.tau[:, None] * direction).float().double()
    found = least_squares(g, direction, CASE.factors)
    assert bool(((found.scalar - CASE.tau).abs() <= found.error).all())
    assert bool((found.error < 1e-5 * CASE.tau.abs()).all())
    assert bool((found.misfit < 1e-6).all())


def test_a_gradient_of_another_direction_has_a_misfit_and_a_wide_error():
    direction = torch.randn(4, 50, generator=torch.Generator().manual_seed(2)).double()
    other = torch.randn(4, 50, generator=torch.Generator().manual_seed(3)).double()
    found = least_squares(CASE.tau[:, None] * (direction + 0.5 * other), direction, CASE.factors)
    assert bool((found.misfit > 0.2).all())
    assert bool(((found.scalar - CASE.tau).abs() <= found.error).all())


def test_a_gradient_of_zeros_says_nothing():
    found = least_squares(torch.zeros(4, 5).double(), torch.ones(4, 5).double(), CASE.factors)
    assert bool(found.misfit.isinf().all())


@pytest.mark.parametrize(
    ("log", "mass"), [(log_normal, math.sqrt(2 * math.pi)), (log_laplace, math.sqrt(2))]
)
@pytest.mark.parametrize("variance", [0.04, 1.0])
def test_log_densities_have_the_variance_they_are_given(log, mass, variance):
    rest = torch.linspace(-30, 30, 200_001, dtype=torch.double)
    density = log(rest, torch.tensor(variance, dtype=torch.double)).exp()
    total = torch.trapezoid(density, rest)
    assert float(total) == pytest.approx(mass, rel=1e-4)
    spread = torch.trapezoid(density * rest.square(), rest) / total
    assert float(spread) == pytest.approx(variance, rel=1e-4)
