"""Guards fail closed on an update that is not what was assumed of it, and say so."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

import softleak as sl
from softleak.audit import Leak
from softleak.audit.sweeps import Treatment
from softleak.guard.flower import Action, LeakageGuard, Question
from tests.integration import strangers as s
from tests.unit.integrations.flower.clients import (
    LR,
    SHAPE,
    batch,
    client,
    context,
    instruction,
    network,
    reply,
)

BOTH = frozenset({Leak.LABEL, Leak.CLASS})
TAGS = 14
X = torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(1))


def tagger() -> nn.Module:
    """A chain with a bias on its head, and fourteen tags or classes."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, TAGS)
        ).eval()  # fmt: skip


def sending(state: s.Tensors) -> Callable:
    """Return a client app that answers with this state."""
    return lambda message, _: reply(message, ArrayRecord(dict(state)), 1)


def sgd(parameters):
    return torch.optim.SGD(parameters, LR)


def step(loss: s.Loss, y: torch.Tensor, model: nn.Module | None = None) -> s.Tensors:
    return s.trained(model or tagger(), [(X, y)], sgd, loss)


def compressed(codec: Callable[[s.Tensors], s.Tensors]) -> s.Tensors:
    model = tagger()
    sent = codec(s.gradient(model, X, torch.tensor([3])))
    return {n: p.detach() - LR * sent[n] for n, p in model.named_parameters()}


def elsewhere() -> s.Tensors:
    """Return the weights received less a gradient at other weights, as a stale client sends it."""
    other = tagger()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    stale = s.gradient(other, X, torch.tensor([3]))
    return {n: p.detach() - LR * stale[n] for n, p in tagger().named_parameters()}


def adamw() -> s.Tensors:
    batch = (torch.cat([X, 1 - X]), torch.tensor([3, 7]))
    return s.trained(tagger(), [batch] * 5, lambda p: torch.optim.AdamW(p, 1e-3))


BROKEN = {
    "BCE": lambda: step(s.bce, s.tags(1)),
    "MSE": lambda: step(s.mse, torch.linspace(-2, 2, TAGS)[None]),
    "hinge": lambda: step(s.hinge, torch.tensor([3])),
    "focal": lambda: step(s.focal, torch.tensor([3])),
    "other weights": elsewhere,
    "AdamW": adamw,
    "pruned": lambda: compressed(lambda g: s.pruned(g, 0.1)),
    "int8": lambda: compressed(s.int8),
}


def guarded(action: Action, state: s.Tensors, stop: frozenset[Leak] = BOTH, **options):
    guard = LeakageGuard(
        tagger(), action, stop=stop, lr=LR, question=Question(input_shape=SHAPE), seeds=1,
        treatments=(Treatment(),), **options,
    )  # fmt: skip
    return guard(instruction(1, tagger().state_dict()), context(), sending(state))


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("options", [{}, {"refuse_unattacked": True}], ids=["default", "strict"])
def test_an_update_that_contradicts_what_was_stated_is_kept_back(what, options):
    sent = guarded(Action.REFUSE, BROKEN[what](), **options)
    assert sent.has_error()
    assert not sent.has_content()


@pytest.mark.parametrize("what", ["BCE", "other weights", "AdamW"])
def test_noise_is_not_looked_for_behind_an_attack_that_never_ran(what):
    assert guarded(Action.DEFEND, BROKEN[what](), stop=frozenset({Leak.CLASS})).has_error()


@pytest.mark.parametrize("what", BROKEN)
def test_a_warning_says_what_was_not_attacked(what, caplog):
    with caplog.at_level(logging.INFO, "softleak"):
        sent = guarded(Action.WARN, BROKEN[what]())
    found = dict(sent.content.metric_records["metrics"])
    for leak in BOTH:  # a zero that means nothing stands beside a one that says so
        told = found[f"guard-{leak.value}"], found[f"guard-{leak.value}-not-attacked"]
        assert told != (0.0, 0.0)
    assert any(record.levelno == logging.WARNING for record in caplog.records)
    assert found["guard-label"] == 1.0 or "contradict" in caplog.text


def test_one_division_gives_the_input_away_under_every_loss():
    sent = guarded(Action.REFUSE, BROKEN["MSE"](), frozenset({Leak.INPUT}))
    assert sent.has_error()
    assert "gives away: input" in sent.error.reason


def test_an_update_that_fits_is_judged_as_before():
    state = step(s.cross_entropy, torch.tensor([3]))
    assert "gives away" in guarded(Action.REFUSE, state).error.reason


@pytest.mark.parametrize("seed", range(6))
def test_the_server_is_no_surer_of_a_class_that_was_stopped_than_of_a_coin(seed):
    """A guard sent an update whose class the server's monitor put at 83 %."""
    guard = LeakageGuard(
        network(), Action.DEFEND, stop=frozenset({Leak.CLASS}), lr=LR, seeds=1,
        question=Question(input_shape=SHAPE), treatments=(Treatment(),),
        source=lambda *_: np.random.default_rng(seed),
    )  # fmt: skip
    plain = client(seed=seed)
    sent = guard(instruction(1), context(), plain)
    if sent.has_error():
        return
    after = sent.content.array_records["arrays"].to_torch_state_dict()
    model = network()
    share = sl.GradientShare.from_update(model.state_dict(), after, lr=LR)
    share = sl.GradientShare(share.gradients, SHAPE, share.rounding, "known")
    _, y = batch(1, seed)
    found = sl.recover_label(model, share)
    assert found.class_index != int(y) or (found.confidence or 1.0) <= 0.5
