from __future__ import annotations

import math

import pytest
import torch

from softleak.labels.noisy.recover import quadrature


def mixture(peaks):
    """The log density of normal peaks (place, width, weight)."""

    def log(t: torch.Tensor) -> torch.Tensor:
        parts = [
            math.log(w / (s * math.sqrt(2 * math.pi))) - ((t - m) / s).square() / 2
            for m, s, w in peaks
        ]
        return torch.stack(parts).logsumexp(0)

    return log


PEAKS = {
    "wide": [(0.5, 0.05, 1.0)],
    "narrow": [(0.3, 1e-7, 1.0)],
    "negative": [(-0.9, 1e-3, 1.0)],
    "three of both signs": [(0.3, 2e-3, 0.3), (-0.2, 5e-3, 0.5), (1.1, 1e-2, 0.2)],
}


@pytest.mark.parametrize("peaks", PEAKS.values(), ids=PEAKS)
def test_mass_and_mean_are_those_of_the_closed_form(peaks):
    log = mixture(peaks)
    t, width = quadrature(log, 1e-4, 2**0.5)
    weight = log(t).exp() * width
    assert float(weight.sum()) == pytest.approx(1, abs=2e-3)
    mean = sum(m * w for m, _, w in peaks)
    assert float((weight * t).sum()) == pytest.approx(mean, abs=2e-3)
    for m, s, w in peaks:
        near = (t - m).abs() < 6 * s
        assert float(weight[near].sum()) == pytest.approx(w, abs=2e-3)


def test_all_scalars_are_within_the_bounds_and_stand_for_all_that_has_weight():
    t, width = quadrature(mixture(PEAKS["wide"]), 1e-2, 1.0)
    assert float(t.abs().min()) >= 1e-2
    assert float(t.abs().max()) <= 1.0
    weight = mixture(PEAKS["wide"])(t)
    assert bool((weight > weight.max() - 70).all())
    assert float(width[t > 0].sum()) == pytest.approx(0.99, abs=0.05)  # ten widths to each side
    flat_t, flat_width = quadrature(torch.zeros_like, 1e-2, 1.0)
    assert float(flat_width.sum()) == pytest.approx(2 * 0.99, abs=1e-9)
    assert float(flat_t.min()) < 0 < float(flat_t.max())
