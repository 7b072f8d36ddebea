from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Beta, MultivariateNormal

import softleak as sl
from softleak.labels.noisy import posterior as blocks
from softleak.labels.noisy.posterior import GAUSSIAN_FLOOR, Posterior, sum_zero_part
from softleak.labels.noisy.recover import Draws, quadrature

from .one_sample import OneSample, smoothed

CLASSES = 6
CASE = OneSample.of(smoothed(2, 0.8))


def posterior(case, family, size, seed=0, **options):
    simplices = family.simplices(CLASSES, range(CLASSES))
    signal = case.signal(size, seed)
    return Posterior(signal, case.head.b, simplices, False, case.typical, **options)


def gaussian(given, tau, labels):
    """The log density of ŷ(τ) around labels (…, C), times the volume element and d log τ."""
    p, covariance = given.moments(tau[None])
    spread = covariance[0] + tau.square() * given.signal.u_covariance
    basis = sum_zero_part(torch.eye(CLASSES, dtype=torch.double))
    inner = basis.T @ spread @ basis + GAUSSIAN_FLOOR * torch.eye(CLASSES - 1)
    pseudo = p[0] - tau * given.signal.u
    around = MultivariateNormal(torch.zeros(CLASSES - 1).double(), inner)
    log = around.log_prob((pseudo - labels) @ basis) + (CLASSES - 1) / 2 * math.log(2 * math.pi)
    return log + (CLASSES - 1) * tau.log() - tau.log()


def test_for_single_labels_the_density_is_the_gaussian_itself():
    given = posterior(CASE, sl.OneHot(), 0.02)
    tau = torch.tensor([0.3, 0.7, 1.1], dtype=torch.double)
    found = given.at(tau, 1).log[..., 0]  # (S, P)
    for row, t in zip(found, tau, strict=True):
        expected = gaussian(given, t, torch.eye(CLASSES).double()) - math.log(CLASSES)
        assert torch.allclose(row, expected, atol=1e-6)


def test_it_is_so_with_more_classes_than_vectors_to_compare():
    """They are then seen in a basis of their own, which keeps lengths and angles."""
    few, t = [2, 3], torch.tensor(0.7, dtype=torch.double)
    simplices = sl.OneHot().simplices(CLASSES, few)
    given = Posterior(CASE.signal(0.02, 0), CASE.head.b, simplices, False, CASE.typical)
    expected = gaussian(given, t, torch.eye(CLASSES).double()[few]) - math.log(len(few))
    assert torch.allclose(given.at(t[None], 1).log[0, :, 0], expected, atol=1e-6)


@pytest.mark.parametrize("unknown", [False, True])
def test_scalars_are_the_same_alone_and_together(monkeypatch, unknown):
    simplices = sl.SmoothedMixed(2).simplices(CLASSES, range(CLASSES))
    given = Posterior(CASE.signal(0.02, 0), CASE.head.b, simplices, unknown, CASE.typical)
    tau = torch.linspace(0.3, 1.2, 7, dtype=torch.double)
    together = given.at(tau, 4)
    sizes = {"LOGITS": 1, "COVARIANCES": 2 * CLASSES**2, "SCALARS": 2}
    for name, size in sizes.items():
        monkeypatch.setattr(blocks, f"TOGETHER_{name}", size)
    apart = given.at(tau, 4)
    torch.testing.assert_close(apart.log, together.log, rtol=0, atol=1e-6)
    torch.testing.assert_close(apart.weights, together.weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize("part", [0.95, 1.0, 1.05])
def test_for_smoothed_labels_it_is_the_integral_over_the_smoothing(part):
    given = posterior(CASE, sl.Smoothed(), 0.02)
    t = torch.tensor(part * CASE.t, dtype=torch.double)
    found = given.at(t[None], 256).log[0].logsumexp(-1)  # (P,)
    flat = (torch.arange(2000, dtype=torch.double) + 0.5) / 2000  # the flat label's weight
    prior = Beta(torch.tensor(1.0).double(), torch.tensor(2.0).double()).log_prob(flat)
    labels = torch.stack([smoothed(2, 1 - float(w)) for w in flat])
    log = gaussian(given, t, labels) + prior - math.log(CLASSES)
    expected = log.logsumexp(0) - math.log(len(labels))
    assert float(found[2]) == pytest.approx(float(expected), abs=0.02)


def test_labels_that_nobody_smoothed_have_a_probability_of_their_own():
    """The faces of smoothed labels are the one-hot labels, each with its own Gaussian density."""
    tau = torch.tensor([0.7, 1.1], dtype=torch.double)
    smoothed_ones = posterior(CASE, sl.Smoothed(), 0.02).at(tau, 1)
    one_hot = posterior(CASE, sl.OneHot(), 0.02).at(tau, 1)
    assert torch.allclose(smoothed_ones.log[:, CLASSES:], one_hot.log, atol=1e-6)


def test_without_noise_of_the_logits_the_moments_are_the_softmax():
    given = posterior(CASE, sl.OneHot(), 1e-9)
    tau = torch.tensor([0.5, -0.5], dtype=torch.double)
    p, covariance = given.moments(tau)
    exact = torch.softmax(given.signal.a / tau[:, None] + CASE.head.b, -1)
    assert torch.allclose(p, exact, atol=1e-9)
    assert float(covariance.abs().max()) < 1e-12


def test_evidence_is_a_factor_of_the_density():
    tau = torch.tensor([0.4, 0.8], dtype=torch.double)
    alone = posterior(CASE, sl.Smoothed(), 0.02)
    helped = posterior(CASE, sl.Smoothed(), 0.02, evidence=(lambda t: -3 * t,))
    assert torch.allclose(helped.density(tau), alone.density(tau) - 3 * tau)


def test_intervals_hold_labels_drawn_from_the_prior_as_often_as_they_say():
    generator = torch.Generator().manual_seed(0)
    held, count = 0, 24
    for seed in range(count):
        weight = 1 - float(1 - torch.rand(1, generator=generator).sqrt())  # density 2w
        case = OneSample.of(smoothed(seed % CLASSES, weight), seed=seed)
        given = posterior(case, sl.Smoothed(), 0.02, seed)
        tau, width = quadrature(given.density, 1e-4, 2**0.5)
        low, high = Draws.of(given, given.at(tau, 8), tau, width).interval(0.9)
        held += bool(low[seed % CLASSES] <= case.y.max() <= high[seed % CLASSES])
    assert held >= 17  # of 24 at 90 % each: fewer than one time in three hundred
