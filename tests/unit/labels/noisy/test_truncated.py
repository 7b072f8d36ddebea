from __future__ import annotations

import pytest
import torch

from softleak.labels.noisy.posterior import draw_inside

LEVELS = (torch.arange(512, dtype=torch.double)[:, None] + 0.5) / 512


@pytest.mark.parametrize(("mean", "std"), [(0.5, 0.1), (1.2, 0.1), (-3.0, 0.2), (0.3, 1e-6)])
def test_in_one_dimension_the_mass_is_exact(mean, std):
    place = -abs(mean - 0.5)  # mirrored below the interval, where a difference of tails is exact
    draws, mass, _ = draw_inside(
        torch.tensor([mean], dtype=torch.double),
        torch.tensor([[std]], dtype=torch.double),
        LEVELS,
    )
    ends = torch.tensor([place - 0.5, place + 0.5], dtype=torch.double) / std
    exact = torch.erfc(-ends / 2**0.5).diff() / 2
    assert torch.allclose(mass.exp(), exact.expand_as(mass), rtol=1e-6, atol=1e-60)
    assert float(draws.min()) >= 0
    assert float(draws.max()) <= 1


def test_in_two_dimensions_it_is_the_mass_of_the_triangle():
    mean = torch.tensor([0.3, 0.5]).double()
    root = torch.tensor([[0.3, 0.0], [-0.1, 0.25]]).double()
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(20_000, 2, generator=generator, dtype=torch.double)
    draws, mass, _ = draw_inside(mean, root, uniform)
    z = torch.randn(200_000, 2, generator=generator, dtype=torch.double)
    plain = mean + z @ root.T
    inside = (plain >= 0).all(-1) & (plain.sum(-1) <= 1)
    assert float(mass.exp().mean()) == pytest.approx(float(inside.double().mean()), rel=0.02)
    weight = mass.exp() / mass.exp().sum()
    assert torch.allclose(weight @ draws, plain[inside].mean(0), atol=0.01)


def test_far_outside_the_nearest_edge_is_drawn():
    draws, mass, _ = draw_inside(
        torch.tensor([5.0]).double(), torch.tensor([[0.01]]).double(), LEVELS[:3]
    )
    assert torch.allclose(draws, torch.ones(3, 1).double(), atol=1e-3)
    assert bool((mass < -1e4).all())
