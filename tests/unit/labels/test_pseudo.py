from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.factors import factor
from softleak.labels.curve import LARGEST, PseudoLabels, misfit, spread
from softleak.paper import models
from softleak.paper.data import Dirichlet, Smoothing, smooth


def curve(model: nn.Module, shares: list[sl.GradientShare]) -> tuple[PseudoLabels, torch.Tensor]:
    head = sl.Head.of(model)
    factors = factor(head, shares)
    return PseudoLabels.of(head, factors), factors.u


def test_the_true_scalar_gives_the_true_label(trained, draw):
    samples = draw(Dirichlet(), 20)
    shares = [sl.capture(trained, s.x, s.y) for s in samples]
    pseudo, u = curve(trained, shares)
    y = torch.stack([s.y for s in samples])
    with torch.no_grad():
        p = torch.cat([trained(s.x[None]) for s in samples]).double().softmax(-1)
    t = ((p - y) * u).sum(-1, keepdim=True)
    labels, size = pseudo.labels(t)
    torch.testing.assert_close(labels[:, 0], y, rtol=0, atol=2e-6)
    torch.testing.assert_close(size[:, 0], (p - y).norm(dim=-1), rtol=1e-6, atol=0)
    assert (size <= LARGEST).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_entries_sum_to_one_for_every_scalar(draw, dtype):
    """The sum is off by t Σu, and Σu is the rounding of the entries of p − y over its norm."""
    model = models.trained_lenet().to(dtype)
    captured = [sl.capture(model, s.x.to(dtype), s.y) for s in draw(Smoothing(), 5)]
    pseudo, _ = curve(model, captured)
    t = torch.cat([torch.logspace(-4, 0.1, 50), -torch.logspace(-4, 0.1, 50)]).double()
    labels, _ = pseudo.labels(t.expand(5, -1))
    # Of 200 such shares, ‖p − y‖ is at least 0.07, and |Σu| ‖p − y‖ at most 2.6 eps in float32 and
    # 12 eps in float64, with and without AVX2.
    rounding = 50 * torch.finfo(dtype).eps / 0.07
    assert ((labels.sum(-1) - 1).abs() <= t.abs() * rounding + 1e-14).all()


def test_errors_are_the_rounding_of_the_labels_of_the_curve(trained, shares):
    captured, _ = shares(Smoothing(), 5)
    pseudo, _ = curve(trained, captured)
    t = torch.logspace(-4, 0.1, 50, dtype=torch.double).expand(5, -1) * torch.tensor([[-1.0]])
    labels, _ = pseudo.labels(t)
    expected = pseudo.rounding(t, pseudo.probabilities(t), labels)
    torch.testing.assert_close(pseudo.errors(t, labels), expected, rtol=1e-9, atol=1e-20)


def test_the_curve_of_one_client_serves_any_number_of_rows(trained, shares):
    captured, _ = shares(Smoothing(), 1)
    pseudo, _ = curve(trained, captured)
    rows = torch.zeros(3, dtype=torch.long)
    t = torch.logspace(-3, 0, 30, dtype=torch.double).view(3, 10)
    one, each = pseudo.take(rows), pseudo.take_each(rows)
    labels, _ = one.labels(t)
    assert torch.equal(labels, each.labels(t)[0])
    assert torch.equal(one.errors(t, labels), each.errors(t, labels))


@pytest.mark.parametrize("limit", [1e2, 1e5])
def test_a_misfit_is_exact_up_to_its_limit_and_never_less_beyond(limit):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(64, 300).double()
        sample = torch.randn(64, dtype=torch.double), smooth(7, 300, 0.2)
    pseudo, _ = curve(model, [sl.capture(model, *sample)])
    for _, t in pseudo.interval().grids():
        exact = misfit(pseudo, sl.Smoothed(), t)
        found = misfit(pseudo, sl.Smoothed(), t, limit)
        within = exact <= limit
        torch.testing.assert_close(found[within], exact[within], rtol=1e-9, atol=0)
        assert (found[~within] > limit).all()
        assert found.isinf().any()


def test_the_spread_does_not_vanish_where_the_softmax_saturates(trained, shares):
    """Undivided, the loss goes to zero with t; that is why it is divided."""
    captured, _ = shares(Smoothing(), 5)
    pseudo, _ = curve(trained, captured)
    tiny = torch.full((5, 2), 1e-6, dtype=torch.double) * torch.tensor([1.0, -1.0])
    labels, _ = pseudo.labels(tiny)
    undivided = (labels - sl.Smoothed().project(labels)).norm(dim=-1)
    assert undivided.max() < 1e-5
    assert spread(pseudo, sl.Smoothed(), tiny).min() > 1e-2


def test_rounding_explains_the_misfit_at_the_truth_and_nowhere_else(trained, shares):
    captured, truth = shares(Smoothing(), 20)
    recoveries = sl.recover_labels(trained, captured, family=sl.Smoothed(), evidence=False)
    pseudo, _ = curve(trained, captured)
    t = torch.tensor([[r.scalar] for r in recoveries], dtype=torch.double)
    assert (misfit(pseudo, sl.Smoothed(), t) < 0.7).all()
    assert (misfit(pseudo, sl.Smoothed(), 1.001 * t) > 10).all()
    assert len(truth) == 20
