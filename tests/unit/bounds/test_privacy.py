"""What differential privacy leaves to an attack, beside other libraries and the exact bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import nn

import softleak as sl
from softleak.bounds.privacy import (
    GRID,
    delta_of,
    epsilon_of,
    largest_success,
    least_multiplier,
    success_curve,
)
from softleak.core.errors import OptionError
from softleak.defenses import Clip

PRIORS = (1e-3, 0.01, 0.1, 0.5)


@pytest.mark.parametrize("multiplier", [0.7, 2.0, 10.0])
@pytest.mark.parametrize("rounds", [1, 4])
def test_gaussian_privacy_agrees_with_riskcal(multiplier, rounds):
    analysis = pytest.importorskip("riskcal.analysis")
    ours = success_curve(PRIORS, multiplier, rounds=rounds)
    theirs = 1 - analysis.get_beta_from_gdp(math.sqrt(rounds) / multiplier, np.array(PRIORS))
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


def test_sampling_nearly_every_round_comes_near_to_every_round():
    pytest.importorskip("riskcal")
    most = success_curve(PRIORS, 2.0, rounds=2)
    nearly = success_curve(PRIORS, 2.0, rate=1 - 1e-6, rounds=2)
    np.testing.assert_allclose(nearly, most, atol=1e-3)
    rarely = success_curve(PRIORS, 2.0, rate=0.1, rounds=2)
    assert all(k < less < more for k, less, more in zip(PRIORS, rarely, most, strict=True))


@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 5.0])
def test_the_bound_is_never_below_the_exact_one(classes, multiplier):
    """Gradients of C classes, orthogonal and as long as the clip: the integral is known."""
    mu = 1 / multiplier
    exact, _ = quad(lambda t: norm.pdf(t - mu) * norm.cdf(t) ** (classes - 1), -12, 12 + mu)
    assert largest_success(1 / classes, multiplier) >= exact - 1e-9


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 3.0])
def test_the_bound_is_above_that_of_a_real_network(multiplier):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5))
    for clip in (0.1, 1.0):
        proof = sl.prove_hidden(
            model, torch.randn(6), 0, noise=multiplier * clip, defense=Clip(clip)
        )
        assert largest_success(0.2, multiplier) >= proof.interval[0]


@pytest.mark.parametrize("noise", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_epsilon_is_the_smallest_at_its_delta(noise, delta):
    epsilon = epsilon_of(noise, 1.0, delta)
    assert delta_of(epsilon, 1 / noise) <= delta
    assert epsilon == 0 or delta_of(0.999 * epsilon, 1 / noise) > delta


def test_epsilon_agrees_with_the_accountant_of_google():
    accounting = pytest.importorskip("dp_accounting")
    for noise in (0.5, 1.0, 3.0):
        theirs = accounting.get_epsilon_gaussian(noise, 1e-5)
        assert epsilon_of(noise, 1.0, 1e-5) == pytest.approx(theirs, rel=1e-3)


def test_the_classical_noise_keeps_its_promise_up_to_one_and_not_far_beyond():
    for epsilon in (0.1, 0.5, 0.99):
        noise = math.sqrt(2 * math.log(1.25 / 1e-5)) / epsilon
        assert epsilon_of(noise, 1.0, 1e-5) < epsilon
    noise = math.sqrt(2 * math.log(1.25 / 1e-5)) / 100
    assert epsilon_of(noise, 1.0, 1e-5) > 100


@pytest.mark.parametrize(("chance", "target", "rounds"), [(0.1, 0.2, 1), (1e-3, 0.05, 30)])
def test_the_least_multiplier_of_the_grid_keeps_its_promise(chance, target, rounds):
    found = least_multiplier(chance, target, rounds)
    assert largest_success(chance, found, rounds=rounds) <= target
    assert largest_success(chance, found / GRID, rounds=rounds) > target
    assert math.log(found, GRID) == pytest.approx(round(math.log(found, GRID)))
    with pytest.raises(OptionError, match="a chance below a target"):
        least_multiplier(0.5, 0.5)


def test_limits_and_mistakes():
    assert largest_success(0.1, 0.0) == 1
    assert largest_success(0.1, 1e9) == pytest.approx(0.1)
    assert epsilon_of(0.0, 1.0, 1e-5) == math.inf
    assert epsilon_of(1.0, 0.0, 1e-5) == 0
    with pytest.raises(OptionError, match="priors above 0"):
        largest_success(0.0, 1.0)
    with pytest.raises(OptionError, match="at least one round"):
        largest_success(0.1, 1.0, rounds=0)
    with pytest.raises(OptionError, match="δ between"):
        epsilon_of(1.0, 1.0, 0.0)
