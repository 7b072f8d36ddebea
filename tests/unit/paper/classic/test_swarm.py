from __future__ import annotations

import pytest
import torch

from softleak.paper.classic import Swarm


def rippled(x):
    """Global minimum −1 at 2, local ones about every unit beside it."""
    return 0.1 * (x - 2).square() - torch.cos(6 * (x - 2))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", range(5))
def test_finds_the_global_minimum(seed):
    loss, point = Swarm().minimise(rippled, -3.0, 6.0, seeded(seed))
    assert point == pytest.approx(2, abs=1e-2)
    assert loss == pytest.approx(-1, abs=1e-3)


@pytest.mark.parametrize("shift", [-40.0, 0.25, 1000.0])
def test_translation(shift):
    here, here_at = Swarm().minimise(rippled, -3.0, 6.0, seeded())
    there, there_at = Swarm().minimise(
        lambda x: rippled(x - shift), -3.0 + shift, 6.0 + shift, seeded()
    )
    assert there_at - shift == pytest.approx(here_at, abs=1e-6)
    assert there == pytest.approx(here, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_reflection(seed):
    _, point = Swarm().minimise(lambda x: rippled(-x), -6.0, 3.0, seeded(seed))
    assert point == pytest.approx(-2, abs=1e-2)


@pytest.mark.parametrize(("low", "high"), [(2.5, 9.0), (-9.0, -2.5)])
def test_stays_inside(low, high):
    seen = []

    def outside(x):
        seen.append(x)
        return x.abs()

    _, point = Swarm(particles=20, iterations=50).minimise(outside, low, high, seeded())
    everywhere = torch.cat(seen)
    assert everywhere.min() >= low
    assert everywhere.max() <= high
    assert abs(point) == 2.5
    assert len(everywhere) == 20 * 51


def test_a_seed_is_an_answer():
    first, again, other = (Swarm().minimise(rippled, -3.0, 6.0, seeded(s)) for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_undefined_points_never_lead():
    _, point = Swarm().minimise(lambda x: torch.where(x < 0, torch.nan, x), -3.0, 6.0, seeded())
    assert 0 <= point < 0.1
