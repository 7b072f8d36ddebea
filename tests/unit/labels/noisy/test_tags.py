"""Several labels behind noise: their probabilities are those with which they are there."""

from __future__ import annotations

import torch
from torch import nn

import softleak as sl
from softleak.core.results import Status
from softleak.labels.noisy.recover import RATES

OUTPUTS, SHARES = 10, 24


def tagger(activation: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), activation, nn.Linear(32, OUTPUTS)).eval()


def noisy(model: nn.Module, seed: int, level: float) -> tuple[sl.GradientShare, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(20, generator=generator)
    rate = RATES[seed % len(RATES)]
    y = (torch.rand(OUTPUTS, generator=generator) < rate).float()
    share = sl.capture(model, x, y, loss="bce")
    return share.map(lambda _, g: g + level * torch.randn(g.shape, generator=generator)), y


def test_labels_are_there_as_often_as_their_probabilities_say():
    model = tagger(nn.ReLU())
    told, truth = [], []
    for seed in range(SHARES):
        share, y = noisy(model, seed, 10 ** (-2.3 + 1.5 * seed / SHARES))
        found = sl.recover_label(model, share, loss="bce")
        assert found.status in (Status.PROBABLE, Status.GUESS)
        assert found.presence is not None
        told.append(found.presence)
        truth.append(y)
    p, t = torch.cat(told), torch.cat(truth).double()
    # Over 240 labels; 4 standard errors. Labels of one share are not independent, hence twice.
    assert abs(float((p - t).sum())) < 8 * float((p * (1 - p)).sum().sqrt()) + 1
    assert float(t[p > 0.95].mean()) > 0.9
    assert float(t[p < 0.05].mean()) < 0.05
    assert int((p > 0.95).sum()) > 20


def test_a_sign_that_nothing_tells_leaves_two_sets_of_labels():
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, OUTPUTS, bias=False)).eval()
    share, y = noisy(model, 4, 1e-4)
    found = sl.recover_label(model, share, loss="bce", evidence=False)
    assert found.presence is not None
    away = (found.presence - 0.5).abs()
    assert float(away.max() - away.min()) < 1e-3  # all labels are right or all are wrong
    assert float(away.max()) < 0.5 - 1e-3
    assert torch.equal(found.presence > 0.5, y > 0.5) or torch.equal(found.presence > 0.5, y < 0.5)


def test_behind_noise_and_an_unknown_factor_no_label_is_claimed():
    model = tagger(nn.ReLU())
    share, _ = noisy(model, 2, 0.01)
    found = sl.recover_label(model, share, loss="bce", scale="unknown")
    assert found.status is Status.GUESS
    assert found.label is None
    assert "not attempted" in found.message
