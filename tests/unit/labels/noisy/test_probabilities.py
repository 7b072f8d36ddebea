from __future__ import annotations

import torch

import softleak as sl
from softleak.labels.noisy.posterior import (
    PROBABILITIES_DAMPED,
    PROBABILITIES_SETTLED,
    PROBABILITIES_SMALLEST,
    NoisyLogits,
    Posterior,
    agreeing_probabilities,
)
from softleak.labels.noisy.recover import draw_labels
from softleak.labels.noisy.spectrum import Signal, Typical

from .one_sample import OneSample, smoothed

CLASSES = 6


def changes(size: float) -> torch.Tensor:
    """How far one more step would move the probabilities of labels of the prior, with noise."""
    case = OneSample.of(smoothed(2, 0.8))
    typical = Typical(case.typical.direction, 0.5, float(case.x.norm().log()), 0.3)
    signal = Signal.of(case.head, case.noisy(size, 3), size, typical)
    simplices = sl.Smoothed().simplices(CLASSES, range(CLASSES))
    posterior = Posterior(signal, case.head.b, simplices, False, typical)
    labels, _ = draw_labels(posterior)
    noise = NoisyLogits.of(posterior, 0).part(0, len(labels), 8)
    p = agreeing_probabilities(posterior, labels[:, None], noise)
    assert bool((p >= 0).all())
    assert torch.allclose(p.sum(-1), torch.ones_like(noise.lengths), atol=1e-3)
    delta = p - labels[:, None]
    tau = delta.norm(dim=-1, keepdim=True).clamp_min(PROBABILITIES_SMALLEST)
    logits = (delta / tau @ signal.response.T + noise.omega) / tau + posterior.b
    return (logits.softmax(-1) - p).norm(dim=-1)


def test_probabilities_agree_with_the_logits_that_they_give():
    moved = changes(0.1)
    assert float(moved.median()) < 2.0**-PROBABILITIES_DAMPED  # what halving it every step leaves
    assert float((moved <= PROBABILITIES_SETTLED).double().mean()) > 0.9


def test_where_nothing_settles_they_are_still_probabilities():
    assert bool(changes(30.0).isfinite().all())
