from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from flwr.clientapp.mod import LocalDpMod

from softleak.audit import Leak
from softleak.audit.sweeps import Treatment
from softleak.core.errors import OptionError
from softleak.defenses import GaussianNoise, LaplaceNoise
from softleak.guard.flower import Action, LeakageGuard, Question
from softleak.paper.data import Normalisation
from tests.unit.integrations.flower.clients import (
    LR,
    SHAPE,
    client,
    context,
    instruction,
    network,
    trained,
)

QUESTION = Question(input_shape=SHAPE)
NOISE = (Treatment(),)
BOTH = frozenset({Leak.CLASS, Leak.INPUT})


def guard(action: Action, **options) -> LeakageGuard:
    return LeakageGuard(network(), action, **{"question": QUESTION, "seeds": 1, **options})


def metrics(message) -> dict:
    return dict(message.content.metric_records["metrics"])


def arrays(message) -> dict:
    return message.content.array_records["arrays"].to_torch_state_dict()


def test_a_warning_sends_the_update_as_it_is_and_says_what_it_gives_away(caplog):
    with caplog.at_level(logging.INFO, "softleak"):
        sent = guard(Action.WARN, lr=LR)(instruction(1), context(), client())
    expected = trained(network().state_dict(), 1, 0)
    assert all(torch.equal(arrays(sent)[name], expected[name]) for name in expected)
    found = metrics(sent)
    assert found["num-examples"] == 1
    assert [found[f"guard-{leak.value}"] for leak in Leak] == [1.0] * 5
    assert "round 1" in caplog.text
    assert "exact label" in caplog.text


@pytest.mark.parametrize("config", [{"lr": LR}, {}])
def test_the_learning_rate_may_come_with_the_round_or_be_unknown(config):
    sent = guard(Action.WARN)(instruction(1, **config), context(), client())
    assert metrics(sent)["guard-label"] == 1.0
    assert metrics(sent)["guard-input"] == 1.0


def test_a_refusal_sends_no_arrays():
    sent = guard(Action.REFUSE, lr=LR)(instruction(1), context(), client())
    assert sent.has_error()
    assert "gives away" in sent.error.reason
    assert not sent.has_content()


@pytest.mark.parametrize(
    ("make", "tails"), [(GaussianNoise, 3.0), (LaplaceNoise, 6.0)], ids=["Gaussian", "Laplace"]
)
def test_noise_is_on_everything_sent_as_large_as_it_says_and_new_in_every_round(make, tails):
    known = {"lr": LR, "stop": frozenset({Leak.CLASS}), "noise": make, "treatments": NOISE}
    own = guard(Action.DEFEND, **known)
    kept = context()
    plain = trained(network().state_dict(), 1, 0)
    first, second = (own(instruction(1), kept, client()) for _ in range(2))
    for sent in (first, second):
        off = {name: (arrays(sent)[name] - plain[name]) / LR for name in plain}
        noise = torch.cat([tensor.flatten() for tensor in off.values()])
        assert all(bool((tensor != 0).float().mean() > 0.5) for tensor in off.values())
        assert float(noise.std()) == pytest.approx(metrics(sent)["guard-noise"], rel=0.1)
        kurtosis = float((noise / noise.std()).pow(4).mean())
        assert kurtosis == pytest.approx(tails, rel=0.25)
        assert metrics(sent)["guard-defended"] == 1.0
    assert not torch.equal(arrays(first)["3.weight"], arrays(second)["3.weight"])
    assert kept.state.config_records["softleak"]["setting"] == metrics(second)["guard-noise"]
    kept.state.config_records["softleak"]["setting"] = 3.0
    # Some draws leave a class probable, and the guard goes on to more noise: this one does not.
    again = guard(Action.DEFEND, **known, source=lambda *_: np.random.default_rng(0))
    assert metrics(again(instruction(1), kept, client()))["guard-noise"] == 3.0


@pytest.mark.parametrize("stop", [frozenset({Leak.INPUT}), BOTH])
def test_behind_the_defence_an_audit_finds_none_of_what_was_to_be_stopped(stop):
    # Without a normalisation an audit stretches what it finds to the range of pixels, and takes it
    # for better than it is in one run of three.
    pixels = Question(input_shape=SHAPE, normalisation=Normalisation((0.0,) * 3, (1.0,) * 3))
    # A guard stops the right class from being named. A wrong one still comes out as probable now
    # and then, behind some noise: the test draws the same noise in every run.
    defence = guard(Action.DEFEND, lr=LR, stop=stop, source=lambda *_: np.random.default_rng(0))
    sent = defence(instruction(1), context(), client())
    again = guard(Action.WARN, lr=LR, question=pixels)(instruction(1), context(), lambda *_: sent)
    found = metrics(again)
    assert found["guard-input"] == 0.0
    assert found["guard-class"] == float(Leak.CLASS not in stop)


def test_several_samples_are_called_that_and_nothing_is_claimed(caplog):
    with caplog.at_level(logging.INFO, "softleak"):
        sent = guard(Action.REFUSE, lr=LR)(instruction(1), context(), client(samples=3))
    assert not sent.has_error()
    assert metrics(sent)["guard-label"] == 0.0
    assert "more than one sample" in caplog.text
    assert "no label is claimed" in caplog.text


@pytest.mark.parametrize("action", [Action.DEFEND, Action.REFUSE])
def test_what_cannot_be_audited_is_not_sent(action):
    def broken(message, _):
        made = client()(message, context())
        made.content["arrays"] = ArrayRecord([np.full((3, 3), np.nan)])
        return made

    sent = guard(action, lr=LR)(instruction(1), context(), broken)
    assert sent.has_error()
    assert "could not be audited" in sent.error.reason


def test_other_messages_pass():
    asked = instruction(1)
    asked.metadata.message_type = "evaluate"
    sent = guard(Action.REFUSE, lr=LR)(asked, context(), client())
    assert "guard-label" not in metrics(sent)


@pytest.mark.parametrize("guard_first", [True, False])
def test_it_works_with_local_differential_privacy_in_either_order(guard_first):
    """The mod nearer to the app sees the update first."""
    private = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=10.0, delta=1e-5)
    mods = [guard(Action.WARN, lr=LR), private]
    outer, inner = mods if guard_first else reversed(mods)
    sent = outer(instruction(1), context(), lambda m, c: inner(m, c, client()))
    assert not sent.has_error()
    plain = trained(network().state_dict(), 1, 0)
    assert not torch.allclose(arrays(sent)["3.weight"], plain["3.weight"], atol=1e-2)
    assert metrics(sent)["guard-input"] == float(not guard_first)


def test_nothing_to_stop_is_a_mistake():
    with pytest.raises(OptionError, match="at least one"):
        LeakageGuard(network(), Action.WARN, stop=frozenset())


def test_what_noise_cannot_stop_is_said_before_the_first_round():
    with pytest.raises(OptionError, match=r"some of class, composition, input, label.*got feature"):
        guard(Action.DEFEND, stop=frozenset({Leak.FEATURE}))
    with pytest.raises(OptionError, match="one trial or more, got 0"):
        guard(Action.DEFEND, seeds=0)
    guard(Action.REFUSE, stop=frozenset({Leak.FEATURE}))  # which needs no noise
