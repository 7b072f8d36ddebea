from __future__ import annotations

import pytest
import torch

from softleak.labels.noisy.spectrum import _spike

from .one_sample import OneSample, smoothed

CASE = OneSample.of(smoothed(2, 0.8))


def test_without_much_noise_the_signal_is_the_leading_pair():
    signal = CASE.signal(1e-9, 0)
    assert torch.allclose(signal.u, CASE.u, atol=1e-7)
    assert torch.allclose(torch.outer(signal.u, signal.x), CASE.G, atol=1e-7)
    assert torch.allclose(signal.a, CASE.head.W @ signal.x)
    assert signal.known == pytest.approx(1, abs=1e-9)
    assert signal.sigma == pytest.approx(float(CASE.G.norm()), rel=1e-6)


def test_the_stated_covariances_are_those_of_the_errors():
    size, true_a = 0.02, CASE.t * CASE.head.W @ CASE.x
    signals = [CASE.signal(size, seed) for seed in range(60)]
    u_error = sum(float((s.u - CASE.u).square().sum()) for s in signals) / len(signals)
    u_stated = sum(float(s.u_covariance.trace()) for s in signals) / len(signals)
    assert u_error == pytest.approx(u_stated, rel=0.4)  # 60 draws of 5 variables: 8 % each
    a_error = sum(float((s.a - true_a).square().sum()) for s in signals) / len(signals)
    a_stated = sum(float(s.a_root.square().sum()) for s in signals) / len(signals)
    assert a_error == pytest.approx(a_stated, rel=0.5)


def test_the_direction_is_known_the_less_the_more_noise_there_is():
    known = [CASE.signal(size, 1).known for size in (1e-3, 0.3, 3.0)]
    assert known == sorted(known, reverse=True)
    assert known[0] > 0.999
    assert known[-1] < 0.9


@pytest.mark.parametrize("energy", [3.0, 50.0])
def test_the_energy_of_a_spike_is_read_back(energy):
    noise, classes, inputs = 0.1, 6, 40
    wide, narrow = inputs * noise**2, (classes - 1) * noise**2
    seen = torch.tensor((energy + wide) * (energy + narrow) / energy)
    assert _spike(seen, noise, classes, inputs) == pytest.approx(energy, rel=1e-5)


def test_a_spike_within_the_noise_is_none():
    assert _spike(torch.tensor(0.2), 0.1, 6, 40) == 0.0
