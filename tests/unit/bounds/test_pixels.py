"""How near any attack comes to an image: the bound beside closed forms and beside attackers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad

import softleak as sl
from softleak.bounds.pixels import ImagePrior, PixelBounds
from softleak.core.errors import ModelError, OptionError

SHAPE = (1, 4, 4)


def prior_precision(prior):
    return prior.basis.T @ (prior.basis / prior.variances[:, None])


def test_of_a_linear_gradient_it_is_the_error_of_the_best_estimate():
    torch.manual_seed(0)
    prior = ImagePrior.of(SHAPE)
    weight = torch.randn(16, 1, dtype=torch.double) * prior.basis  # along the prior's own parts
    bounds = PixelBounds(lambda u: weight @ u, prior)
    for noise in (0.1, 1.0, 10.0, 100.0):
        A = weight.T @ weight / noise**2 + prior_precision(prior)
        exact = float(torch.linalg.inv(A).diagonal().mean())
        found = bounds.at(noise)
        assert found.low <= found.error
        assert found.low <= exact * (1 + 1e-9)
        assert found.error == pytest.approx(exact, rel=0.1)
    mixed = torch.randn(9, 16, dtype=torch.double)  # across them: lower than it could be
    A = mixed.T @ mixed / 0.1**2 + prior_precision(prior)
    across = PixelBounds(lambda u: mixed @ u, prior).at(0.1)
    assert 0 < across.error < float(torch.linalg.inv(A).diagonal().mean())


def test_limits():
    prior = ImagePrior.of(SHAPE)
    bounds = PixelBounds(torch.sin, prior)
    assert bounds.at(0.0).low == 0
    assert bounds.at(0.0).psnr == math.inf
    assert not bounds.at(0.0).hidden
    endless = bounds.at(math.inf)
    assert endless.low == pytest.approx(prior.error)
    assert endless.psnr == pytest.approx(-20 * math.log10(0.25))
    lows = [bounds.at(10.0**k).low for k in range(-3, 4)]
    assert lows == sorted(lows)


def test_the_weakest_noise_hides_and_less_does_not():
    bounds = PixelBounds(lambda u: u.sin(), ImagePrior.of(SHAPE))
    found = bounds.weakest(20.0)
    assert found.hidden
    assert not bounds.at(0.98 * found.noise, 20.0).hidden
    assert bounds.weakest(12.0) is None  # the prior alone tells more


def smooth():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, 3)
    ).eval()


def test_no_estimate_comes_nearer_than_the_bound_not_even_one_that_starts_at_the_truth():
    """Maximum a posteriori by Gauss–Newton steps from the true image, on images of the prior."""
    model, prior, label = smooth(), ImagePrior.of(SHAPE), torch.tensor([0.0, 1.0, 0.0])
    own = {name: p.detach().double() for name, p in model.named_parameters()}

    def gradient(u):
        def lost(weights):
            logits = functional_call(model, weights, (u.view(1, *SHAPE),))
            return -(torch.log_softmax(logits, 1) * label).sum()

        return torch.cat([g.flatten() for g in grad(lost)(own).values()])

    precision, generator = prior_precision(prior), torch.Generator().manual_seed(1)
    for noise in (0.01, 0.1):
        bound = sl.bound_pixels(model, 1, prior, noise=noise)
        errors = []
        for true in prior.draw(20, generator):
            here = gradient(true)
            sent = here + noise * torch.randn(here.shape, generator=generator, dtype=torch.double)
            u = true.clone()
            for _ in range(4):
                J = torch.func.jacrev(gradient)(u)
                slope = J.T @ (sent - gradient(u)) / noise**2 - precision @ (
                    u - prior.mean.view(-1)
                )
                u = u + torch.linalg.solve(J.T @ J / noise**2 + precision, slope)
            errors.append(float((u - true).square().mean()))
        mean = sum(errors) / len(errors)
        assert mean > 0.9 * bound.low  # of so few images
        assert mean < 3 * bound.error


def test_the_loss_counts_and_a_network_with_kinks_has_no_bound():
    prior = ImagePrior.of(SHAPE)
    label = torch.tensor([0.0, 1.0, 0.0])
    found = [
        sl.bound_pixels(smooth(), label, prior, noise=0.1, loss=loss).error
        for loss in ("ce", "bce", "mse")
    ]
    assert len({round(error, 6) for error in found}) == 3
    kinked = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(ModelError, match="no bound holds on the image: the network is not known"):
        sl.bound_pixels(kinked, 1, prior, noise=0.1)
    with pytest.raises(OptionError, match="noise of 0 or more"):
        sl.bound_pixels(smooth(), 1, prior, noise=-1.0)


def test_the_message_says_that_it_is_a_mean_over_the_prior():
    found = sl.bound_pixels(smooth(), 1, ImagePrior.of(SHAPE), noise=3.0)
    assert found.hidden
    assert "proved hidden from 20 dB on" in found.message
    assert any("of a single image an attack may come nearer" in one for one in found.assumptions)
