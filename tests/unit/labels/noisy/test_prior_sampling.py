from __future__ import annotations

import pytest
import torch

import softleak as sl
from softleak.labels.noisy.posterior import Posterior
from softleak.labels.noisy.recover import Draws, draw_from_prior, draw_labels, quadrature
from softleak.labels.noisy.spectrum import Signal, Typical

from .one_sample import OneSample, smoothed

CLASSES = 6


def posterior(case: OneSample, family: sl.Family, size: float) -> Posterior:
    length = float(case.x.norm().log())
    typical = Typical(case.typical.direction, 0.5, length, 0.3)
    signal = Signal.of(case.head, case.noisy(size, 3), size, typical)
    simplices = family.simplices(CLASSES, range(CLASSES))
    return Posterior(signal, case.head.b, simplices, False, typical)


def test_labels_have_the_moments_of_the_prior():
    given = posterior(OneSample.of(smoothed(2, 0.8)), sl.Smoothed(), 0.1)
    labels, plain = draw_labels(given)
    assert torch.allclose(labels.sum(-1), torch.ones(len(labels)).double())
    assert 2 * int(plain.sum()) == len(labels)  # as probable as the smoothed ones
    assert torch.equal(labels[plain].amax(-1), torch.ones(int(plain.sum())).double())
    top = labels[~plain].amax(-1)
    weight = (top - 1 / CLASSES) * CLASSES / (CLASSES - 1)  # 1 − ε, of density 2 (1 − ε)
    assert float(weight.mean()) == pytest.approx(2 / 3, abs=0.07)  # 192 draws: 0.017
    assert float(weight.square().mean()) == pytest.approx(1 / 2, abs=0.085)
    assert torch.equal(labels.argmax(-1).bincount(), torch.full((CLASSES,), 64))


@pytest.mark.parametrize("family", [sl.OneHot(), sl.Smoothed()], ids=str)
def test_with_some_noise_it_agrees_with_the_quadrature(family):
    given = posterior(OneSample.of(smoothed(2, 1.0)), family, 0.3)
    sampled = draw_from_prior(given)
    tau, width = quadrature(given.density, 1e-4, 2**0.5)
    integrated = Draws.of(given, given.at(tau, 8), tau, width)
    assert float(sampled.weight.sum()) == pytest.approx(1)
    far = float((sampled.classes() - integrated.classes()).abs().sum())
    assert far < 0.5  # both are approximations here; unrelated ones are up to 2 apart
    assert int(sampled.classes().argmax()) == int(integrated.classes().argmax())


def test_hardly_any_signal_leaves_no_class_sure():
    given = posterior(OneSample.of(smoothed(2, 0.8)), sl.Smoothed(), 1e3)
    found = draw_from_prior(given).classes()
    assert float(found.max()) < 0.9
    assert float(found.min()) > 0
