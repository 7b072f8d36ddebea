"""How good an image may be that is estimated from a changed gradient."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.audit.reach import NoiseReach
from softleak.core.errors import ModelError
from softleak.core.subject import Subject
from softleak.defenses import Clip, GaussianNoise, Prune, Withhold
from softleak.matching.gauss_newton.metric import COLOUR_CORRELATION, CONTRAST, image_precision

SHAPE = (3, 4, 5)
PRIOR_PSNR = -20 * math.log10(CONTRAST)


@pytest.fixture(scope="module")
def case():
    """A small convolutional network, a sample, its gradient and the reach of it."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(120, 5)
    )
    x, y = torch.rand(SHAPE), torch.eye(5)[2]
    share = sl.capture(model, x, y)
    reach = NoiseReach.of(Subject.of(model, SHAPE), share, x, y, torch.tensor(1.0))
    return model, x, y, share, reach


def size(share) -> float:
    return float(torch.cat([g.reshape(-1) for g in share.values()]).square().mean().sqrt())


def test_it_is_the_error_of_the_best_linear_estimate(case):
    model, x, y, share, reach = case
    std = 0.5 * size(share)
    names, parameters = zip(*model.named_parameters(), strict=True)

    def gradient(pixels):
        logits = torch.func.functional_call(
            model, dict(zip(names, parameters, strict=True)), pixels[None]
        )
        loss = -(torch.log_softmax(logits, -1) * y).sum()
        found = torch.autograd.grad(loss, parameters, create_graph=True)
        return torch.cat([g.reshape(-1) for g in found])

    jacobian = torch.autograd.functional.jacobian(gradient, x).reshape(-1, x.numel()).double()
    prior = image_precision(SHAPE)
    error = torch.linalg.inv(jacobian.T @ jacobian / std**2 + prior).diagonal().mean()
    found = [reach.psnr(share, GaussianNoise(std, seed)(share)) for seed in range(5)]
    assert sum(found) / 5 == pytest.approx(-10 * math.log10(float(error)), abs=0.3)


def test_it_falls_with_noise_to_what_is_known_beforehand(case):
    *_, share, reach = case
    levels = [
        reach.psnr(share, GaussianNoise(size(share) * 4.0**k, 0)(share)) for k in range(-3, 9)
    ]
    assert levels == sorted(levels, reverse=True)
    assert levels[0] > levels[-1] + 5
    assert levels[-1] == pytest.approx(PRIOR_PSNR, abs=0.1)


def test_a_factor_hides_nothing(case):
    *_, share, reach = case
    clipped = Clip(share.norm() / 100)(share)
    assert reach.psnr(share, clipped) == pytest.approx(reach.psnr(share, share), abs=0.1)


def test_what_is_pruned_or_withheld_cannot_add_to_it(case):
    *_, share, reach = case
    whole = reach.psnr(share, share)
    kept = [reach.psnr(share, Prune(part)(share)) for part in (0.5, 0.1)]
    assert whole + 0.1 >= kept[0] >= kept[1] - 0.1
    withheld = Withhold(tuple(name for name in share if name != "0.bias"))(share)
    assert reach.psnr(share, withheld) < whole - 3


def test_a_level_is_exceeded_as_the_psnr_says_and_nothing_is_computed_twice(case):
    *_, share, reach = case
    sent = [GaussianNoise(size(share) * 4.0**k, k)(share) for k in range(-3, 6)]
    told = [reach.psnr(share, one) for one in sent]
    level = told[4]
    fresh = replace(reach, known=[])
    assert [fresh.exceeds(share, one, level) for one in sent] == [p >= level for p in told]
    computed = len(fresh.known)
    assert computed < len(sent)  # what is noisier than the first that failed has failed as well
    assert not fresh.exceeds(share, sent[-1], level)
    assert fresh.exceeds(share, share, level)
    assert fresh.exceeds(share, Clip(share.norm() / 100)(share), level)
    assert len(fresh.known) == computed


def test_pixels_of_another_size_make_the_same_image(case):
    model, x, y, share, _ = case
    halved = NoiseReach.of(Subject.of(model, SHAPE), share, x, y, torch.tensor(0.5))
    noisy = GaussianNoise(size(share) / 10, 0)(share)
    whole = case[4].psnr(share, noisy)
    assert halved.psnr(share, noisy) > whole  # the same error is a smaller part of the range


def test_gradients_are_drawn_where_not_all_fit(case):
    model, x, y, share, reach = case
    some = NoiseReach.of(Subject.of(model, SHAPE), share, x, y, torch.tensor(1.0), 16 * 65 * 500)
    assert len(some.counts) < len(reach.counts)
    assert float(some.counts.sum()) == pytest.approx(float(reach.counts.sum()))
    noisy = GaussianNoise(size(share), 0)(share)
    assert some.psnr(share, noisy) == pytest.approx(reach.psnr(share, noisy), abs=1.0)


def test_an_input_that_is_too_large_is_refused(case):
    model, x, y, share, _ = case
    with pytest.raises(ModelError, match="at most 10 entries"):
        NoiseReach.of(Subject.of(model, SHAPE), share, x, y, torch.tensor(1.0), unknowns=10)


def test_neighbours_and_colours_are_alike_beforehand():
    covariance = torch.linalg.inv(image_precision(SHAPE))
    assert float(covariance.diagonal().mean().sqrt()) == pytest.approx(CONTRAST)
    near, far, colour = covariance[0, 1], covariance[0, 4], covariance[0, 20]
    assert near > far
    assert colour == pytest.approx(float(covariance[0, 0]) * COLOUR_CORRELATION)
    plain = image_precision((7,))
    assert torch.equal(plain, torch.eye(7).double() / CONTRAST**2)
