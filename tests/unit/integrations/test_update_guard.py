"""A guard of networks that cannot be walked back: it solves for their images if it has the time."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn

import softleak as sl
from softleak.audit import Leak
from softleak.audit.report import Method
from softleak.guard.auditor import ClientUpdate, Question
from softleak.guard.guard import Action, GuardPolicy, UpdateGuard

SHAPE, LR, INPUT = (1, 6, 6), 0.1, frozenset({Leak.INPUT})
ENOUGH = 120.0  # seconds; the image is found in one or two


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.SiLU(), nn.Flatten(), nn.Linear(72, 5),
    ).eval()  # fmt: skip


@pytest.fixture(scope="module")
def step(model):
    image = torch.rand(SHAPE, generator=torch.Generator().manual_seed(3))
    share = sl.capture(model, image, torch.tensor([0.9, 0.1, 0.0, 0.0, 0.0]))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    after = {name: tensor - LR * share[name] for name, tensor in before.items()}
    return ClientUpdate(0, lr=LR, received=before).sending(after, 1)


def outcome(model, step, action, seconds, *, refuse=False):
    policy = GuardPolicy(action, INPUT, seeds=1, refuse_unattacked=refuse)
    guard = UpdateGuard(model, policy, Question(input_shape=SHAPE, seconds=seconds))
    return guard, guard.outcome(step, None, np.random.default_rng(0))


def test_an_image_is_solved_for_and_its_update_refused(model, step):
    _, found = outcome(model, step, Action.REFUSE, ENOUGH)
    assert found.found.report.input.method is Method.SOLVING
    assert found.refusal == "the update gives away: input"


def test_an_image_that_was_solved_for_is_hidden_by_noise(model, step):
    _, found = outcome(model, step, Action.DEFEND, ENOUGH)
    assert Leak.INPUT in found.found.leaks
    assert found.stopped is not None
    noise = torch.cat([(found.sent[name] - g).flatten() for name, g in step.share.items()])
    assert noise.square().mean().sqrt() > 1e-3
    assert found.left.cosine > 0.5


def test_without_time_the_log_warns_that_the_image_was_not_attacked(model, step, caplog):
    guard, found = outcome(model, step, Action.DEFEND, 0.0)
    assert not found.refusal
    with caplog.at_level(logging.INFO, "softleak"):
        guard.say(1, found, 0.0)
    assert "This guard is told to stop what was not attacked: input." in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING


@pytest.mark.parametrize("action", [Action.WARN, Action.DEFEND, Action.REFUSE])
def test_what_was_not_attacked_is_refused_if_so_asked(model, step, action):
    _, found = outcome(model, step, action, 0.0, refuse=True)
    assert found.refusal == "it was not attacked: input"
    assert found.sent is None
