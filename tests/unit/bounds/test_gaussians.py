"""The best attack on Gaussians that differ by their means, against what is known of it."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import binom, norm

from softleak.bounds.gaussians import Mixture, Successes


def mixture(points, prior=None):
    """The candidates at these points (C, N), equally likely unless a prior is given."""
    points = torch.as_tensor(points, dtype=torch.double)
    prior = torch.ones(len(points)) if prior is None else torch.tensor(prior)
    differences = points - points[0]
    return Mixture(differences @ differences.T, prior.double() / prior.double().sum())


def test_no_noise_names_every_candidate():
    found = mixture(torch.randn(5, 3, generator=torch.Generator().manual_seed(1))).best_attack(
        0, 999
    )
    assert found.rate == 1
    assert found.interval[1] == 1


@pytest.mark.parametrize("noise", [1e9, math.inf])
def test_endless_noise_leaves_the_chance(noise):
    unequal = mixture(torch.eye(4), [0.1, 0.2, 0.4, 0.3])
    assert unequal.chance == pytest.approx(0.4)
    low, high = unequal.best_attack(noise, 20_000).interval
    assert low < 0.4 < high
    assert high - low < 0.02


@pytest.mark.parametrize("noise", [0.0, 1e-3, 1.0])
def test_equal_means_cannot_be_told_apart(noise):
    pair = mixture([[1.0, 2.0], [1.0, 2.0]], [0.3, 0.7])
    low, high = pair.best_attack(noise, 20_000).interval
    assert low < 0.7 < high
    three = mixture([[0.0], [0.0], [5.0]])
    low, high = three.best_attack(min(noise, 0.5), 20_000).interval
    assert low < 2 / 3 < high


@pytest.mark.parametrize("noise", [0.4, 1.0, 3.0])
def test_two_candidates_agree_with_the_closed_form(noise):
    distance = 2.5
    found = mixture([[0.0, 0.0], [1.5, 2.0]]).best_attack(noise, 2_000_000)
    assert found.rate == pytest.approx(norm.cdf(distance / 2 / noise), abs=1e-3)


def test_two_unequal_candidates_agree_with_the_closed_form():
    d, noise, p = 2.0, 1.5, 0.8
    bar = d / 2 + noise**2 / d * math.log(p / (1 - p))  # where the likelier one ends
    expected = p * norm.cdf(bar / noise) + (1 - p) * norm.cdf((d - bar) / noise)
    found = mixture([[0.0], [d]], [p, 1 - p]).best_attack(noise, 2_000_000)
    assert found.rate == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_means_at_equal_distances_agree_with_the_known_integral(noise):
    expected, _ = quad(lambda t: norm.pdf(t - 1 / noise) * norm.cdf(t) ** 9, -12, 20)
    found = mixture(torch.eye(10)).best_attack(noise, 2_000_000)
    assert found.rate == pytest.approx(expected, abs=1e-3)


def test_translation_and_rotation_change_nothing():
    generator = torch.Generator().manual_seed(2)
    points = torch.randn(6, 4, generator=generator, dtype=torch.double)
    turn, _ = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.double))
    one, other = mixture(points), mixture(points @ turn + 100)
    torch.testing.assert_close(one.distances, other.distances)
    near = one.best_attack(1.0, 50_000).rate - other.best_attack(1.0, 50_000).rate
    assert abs(near) < 0.01


@pytest.mark.parametrize(("hits", "trials"), [(0, 50), (13, 50), (50, 50)])
def test_the_interval_is_exact(hits, trials):
    low, high = Successes(hits, trials).interval
    assert hits == 0 or binom.sf(hits - 1, trials, low) == pytest.approx(0.005)
    assert hits == trials or binom.cdf(hits, trials, high) == pytest.approx(0.005)


def test_the_weakest_noise_hides_and_a_weaker_one_does_not():
    three = mixture(torch.eye(3))
    noise = three.weakest_noise(0.5, 20_000)
    assert three.best_attack(noise, 20_000).interval[1] <= 0.5
    assert three.best_attack(0.98 * noise, 20_000).interval[1] > 0.5
    assert three.weakest_noise(0.33, 20_000) is None
