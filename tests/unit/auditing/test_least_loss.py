from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.audit import Leak, NamedShare, Options, audit_shares
from softleak.audit.sweeps import PLAIN, Treatment, mean_utility, utility
from softleak.audit.weakest import Search, expected_progress, least_loss, treated
from softleak.core.subject import Subject

SHAPE = (3, 4, 4)
KEPT = Treatment(kept=0.1)


@pytest.fixture(scope="module")
def search():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Sigmoid(), nn.Linear(16, 4))
    share = sl.capture(model, torch.rand(SHAPE), 2)
    subject, options = Subject.of(model, SHAPE), Options(views=False)
    (report,) = audit_shares(subject, [NamedShare("one", share)], options)
    return Search.of(subject, share, report, options, frozenset({Leak.CLASS}), 1)


@pytest.mark.parametrize("treatment", [PLAIN, KEPT, Treatment(length=0.5), Treatment(0.1, 0.5)])
def test_the_expected_progress_is_the_measured_one(search, treatment):
    tried = treated(search, treatment)
    setting, true = tried.grid[12], tried.target.share.share
    sent = [tried.send(setting, seed) for seed in range(200)]
    measured = mean_utility([utility(true, one) for one in sent]).progress
    assert expected_progress(tried, setting) == pytest.approx(measured, rel=0.05)


def test_noise_is_on_the_kept_entries_alone(search):
    tried = treated(search, KEPT)
    sent = tried.send(0.1, 0)
    for name, g in tried.prepared.items():
        assert torch.equal(sent[name] == 0, g == 0)
        assert int((g != 0).sum()) <= -(-g.numel() // 10)


def test_the_best_of_all_treatments_stops_the_attack_and_is_no_worse_than_noise_alone(search):
    alone = least_loss(search, (PLAIN,))
    best = least_loss(search, (PLAIN, KEPT, Treatment(length=0.5)))
    assert best.utility.progress >= alone.utility.progress
    assert not treated(search, best.treatment).hit(best.setting)


def test_a_treatment_that_could_only_be_worse_is_not_tried(search, monkeypatch):
    tried = []
    weakest = Search.weakest
    monkeypatch.setattr(
        Search, "weakest", lambda self, within=None: tried.append(1) or weakest(self, within)
    )
    weak = replace(search, leaks=frozenset({Leak.LABEL}))
    weak = replace(weak, target=replace(weak.target, label=None, pixels=None))
    assert least_loss(weak, (PLAIN, KEPT)).treatment == PLAIN  # nothing is to be hidden
    assert len(tried) == 1


def test_a_right_guess_counts_behind_pruning(search):
    tried = treated(search, Treatment(kept=0.5))
    assert tried.hit(tried.grid[0])  # the head's bias still tells the class
