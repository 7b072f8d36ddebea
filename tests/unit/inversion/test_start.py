"""What a recovery says of the head's input, beside what autograd says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import softleak as sl
from softleak.inversion.invert import start_state
from softleak.inversion.steps import LayerState
from tests.unit.inversion.examples import normal


def started(noise: float = 0.0, **changes: object) -> tuple[LayerState, Tensor, Tensor]:
    """The state at the head of a small network, the true feature and the true derivative."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 10)).eval()
    x, y = torch.randn(8), torch.tensor([0.7, 0.3] + [0.0] * 8)
    feature = model[:2](x[None])[0].detach().double().requires_grad_()
    logits = feature @ model[2].weight.detach().double().T + model[2].bias.detach().double()
    loss = -(y.double() * logits.log_softmax(0)).sum()
    (delta,) = torch.autograd.grad(loss, feature)
    share, head = sl.capture(model, x, y), sl.Head.of(model)
    recovery = replace(sl.recover_label(model, share), **changes)
    if noise:
        share = share.map(lambda _, g: g + noise * normal(*g.shape).to(g)).expecting(noise)
    state = start_state(head, share, recovery, recovery.feature, recovery.scalar)
    return state, feature.detach(), delta


def test_the_walk_starts_at_the_feature_and_its_derivative():
    state, feature, delta = started()
    torch.testing.assert_close(state.value, feature, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(state.delta, delta, rtol=1e-5, atol=1e-6)
    off = (state.delta - delta).abs()
    scale = state.scale_error * delta.abs()
    assert bool((off < 6 * state.delta_error.hypot(scale)).all())
    assert bool(((state.value - feature).abs() < 6 * state.error).all())
    assert not state.curvature.any()


def test_a_unique_label_has_a_sixteenth_of_the_bound_for_its_standard_error():
    unique, ambiguous = (
        started(feature_error=1e-3, status=status)[0].scale_error
        for status in (sl.Status.UNIQUE, sl.Status.AMBIGUOUS)
    )
    assert unique == pytest.approx(1e-3 / 16)
    assert ambiguous == pytest.approx(1e-3)


def test_a_scale_is_never_less_certain_than_its_size():
    state, _, _ = started(feature_error=50.0, status=sl.Status.AMBIGUOUS)
    assert state.scale_error == 1.0


def test_declared_noise_is_counted_in_both_errors():
    clean, noisy = started()[0], started(noise=1e-3)[0]
    assert float(noisy.error.min()) > 1e-3 > float(clean.error.max())
    assert bool((noisy.delta_error > 10 * clean.delta_error).all())
