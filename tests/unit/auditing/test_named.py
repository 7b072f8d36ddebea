"""Noise that merely spoils the exact proof hides no class from an attacker who knows its size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from softleak.audit import Leak, Options, audit
from softleak.audit.weakest import Search, root_mean_square
from softleak.audit.whatif import classes_named
from softleak.core.knowledge import Knowledge
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.defenses import GaussianNoise

SHAPE = (3, 8, 8)
HELD = {1, 3}


@pytest.fixture(scope="module", params=[True, False], ids=["bias", "no bias"])
def case(request):
    """A model and the mean gradient of eight samples of two classes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 5, bias=request.param)]
        model = nn.Sequential(*layers)
        y = torch.tensor([1, 3] * 4)
        F.cross_entropy(model(torch.rand(8, *SHAPE)), y).backward()
    share = GradientShare({n: p.grad for n, p in model.named_parameters()}, scale="known")
    return model, share


def named(case, noise: float) -> frozenset[int]:
    model, share = case
    sent = GaussianNoise(noise, 0)(share)
    return classes_named(Subject.of(model, SHAPE), sent, noise)


def test_little_noise_hides_no_class_and_much_noise_hides_all(case):
    unit = root_mean_square(case[1])
    assert set(named(case, 1e-3 * unit)) == HELD
    assert set(named(case, 0.1 * unit)) == HELD
    assert named(case, 1e4 * unit) == frozenset()


def test_the_search_finds_noise_behind_which_no_class_is_named(case):
    model, share = case
    options = Options(Knowledge(scale="known"), inputs=False, views=False)
    report = audit(model, share, options=options, input_shape=SHAPE)
    assert set(report.composition.raised) == HELD
    assert set(report.composition.present) <= HELD
    subject = Subject.of(model, SHAPE)
    search = Search.of(subject, share, report, options, frozenset({Leak.COMPOSITION}), 2)
    assert not search.stops(share)
    stopped = search.weakest()
    assert stopped is not None
    assert stopped.guesses is None
    assert stopped.class_bound == 1.0
    for seed in range(2):
        sent = GaussianNoise(stopped.setting, seed)(share)
        assert search.stops(sent, stopped.setting)
        assert not classes_named(subject, sent, stopped.setting) & HELD
