from __future__ import annotations

import pytest
import torch

from softleak.labels.noisy.recover import Draws


def draws(
    labels: torch.Tensor, weight: torch.Tensor | None = None, plain: torch.Tensor | None = None
) -> Draws:
    if weight is None:
        weight = torch.ones(len(labels), dtype=torch.double)
    one = torch.ones(len(labels), dtype=torch.double)
    if plain is None:
        plain = torch.zeros(len(labels), dtype=torch.bool)
    return Draws(labels, one, one, weight / weight.sum(), plain)


def around(middle: list[float], count: int, spread: float = 0.02) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    off = spread * torch.randn(count, len(middle), generator=generator, dtype=torch.double)
    return torch.tensor(middle, dtype=torch.double) + off - off.mean(-1, keepdim=True)


@pytest.mark.parametrize("mass", [0.5, 0.9])
def test_intervals_hold_the_mass_they_say_and_are_no_longer_than_equal_tails(mass):
    labels = around([0.5, 0.3, 0.2], 4000)
    low, high = draws(labels).interval(mass)
    held = ((labels >= low) & (labels <= high)).double().mean(0)
    assert bool(((held - mass).abs() <= 1e-3).all())
    tails = torch.quantile(labels, torch.tensor([(1 - mass) / 2, (1 + mass) / 2]).double(), dim=0)
    assert bool((high - low <= tails[1] - tails[0] + 1e-12).all())


def test_intervals_of_single_points_reach_the_edge_they_are_at():
    interval = draws(torch.eye(3).double()[[1, 1, 1]]).interval(0.9)
    assert torch.equal(interval, torch.tensor([[0.0, 1.0, 0.0]] * 2).double())


def test_quantiles_are_weighted():
    labels = around([0.5, 0.3, 0.2], 3)
    values = torch.tensor([3.0, 1.0, 2.0], dtype=torch.double)
    found = draws(labels, torch.tensor([0.2, 0.7, 0.1]).double())
    assert float(found.quantile(values, 0.5)) == 1.0
    assert float(found.quantile(values, 0.75)) == 2.0
    assert float(found.quantile(values, 0.9)) == 3.0


def test_classes_have_the_weight_of_the_labels_they_lead():
    labels = torch.tensor([[0.6, 0.4], [0.3, 0.7], [0.1, 0.9]]).double()
    found = draws(labels, torch.tensor([1.0, 2.0, 1.0]).double())
    assert torch.allclose(found.classes(), torch.tensor([0.25, 0.75]).double())
    mine = found.some(found.labels.argmax(-1) == 1)
    assert torch.equal(mine.labels, labels[1:])
    assert float(mine.weight.sum()) == pytest.approx(1)


@pytest.mark.parametrize(("part", "both"), [(0.3, True), (0.02, False)])
def test_an_interval_holds_smoothed_labels_and_others_if_either_may_be(part, both):
    """Nobody knows whether a client smooths: a prior between the two is not a chance."""
    labels = torch.cat([around([0.9, 0.1], 400, 0.001), around([0.7, 0.3], 400, 0.001)])
    plain = torch.arange(800) < 400
    weight = torch.where(plain, 1 - part, part)
    low, high = draws(labels, weight, plain).interval(0.9)
    assert float(high[0]) == pytest.approx(0.9, abs=0.1)
    assert (float(low[0]) < 0.71) == both
