from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.clientapp.mod import LocalDpMod

from softleak.audit import Leak
from softleak.audit.sweeps import Treatment
from softleak.bounds.gaussians import Successes
from softleak.core.errors import OptionError
from softleak.defenses import GaussianNoise, LaplaceNoise
from softleak.guard.flower import Action, LeakageGuard, Promise, Question
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


PROMISE = Promise(clip=0.05, chance=0.2, target=0.4, rounds=3)


def told(seed=0, samples=1):
    """What a client that tells more than it should answers."""

    def train(message, where):
        made = client(samples, seed)(message, where)
        made.content.metric_records["metrics"]["train-loss"] = 0.1 * seed
        made.content["more"] = MetricRecord({"classes": seed})
        return made

    return train


def test_a_proof_sends_public_noise_and_nothing_else_until_the_promise_is_spent(caplog):
    own, kept = guard(Action.PROVE, promise=PROMISE), context()
    with caplog.at_level(logging.INFO, "softleak"):
        sent = [own(instruction(1), kept, told(seed)) for seed in range(4)]
    assert sent[3].has_error()
    assert "3 updates were promised, and sent" in sent[3].error.reason
    received = network().state_dict()
    for one in sent[:3]:
        assert set(one.content) == {"arrays", "metrics"}
        assert metrics(one) == {
            "num-examples": 1, "guard-noise": PROMISE.noise, "guard-proved": PROMISE.success
        }  # fmt: skip
        off = torch.cat([(arrays(one)[n] - t).flatten() for n, t in received.items()])
        assert float(off.std()) == pytest.approx(PROMISE.noise, rel=0.05)
    assert not torch.equal(arrays(sent[0])["1.weight"], arrays(sent[1])["1.weight"])
    assert "proved hidden is whatever" in caplog.text
    assert PROMISE.success <= 0.4


def test_what_is_sent_is_as_near_to_the_clipped_step_as_the_noise_lets_it():
    loud = Promise(clip=0.01, chance=0.2, target=0.999999)
    sent = guard(Action.PROVE, promise=loud)(instruction(1), context(), client())
    plain, before = trained(network().state_dict(), 1, 0), network().state_dict()
    step, came = (
        torch.cat([(one[n] - t).flatten() for n, t in before.items()]).double()
        for one in (plain, arrays(sent))
    )
    along = float(came @ step / step.norm())
    assert float(step.norm()) > 2 * loud.clip
    assert along == pytest.approx(loud.clip, abs=5 * loud.noise)


def test_no_attacker_on_what_is_proved_beats_the_promise():
    """The likeliest of two clients' updates, all else known, in many rounds."""
    promise, hits = Promise(clip=0.05, chance=0.5, target=0.8), 0
    policy = {"promise": promise, "metrics": False}
    before = network().state_dict()
    steps = []
    for seed in (0, 2):
        after = trained(before, 1, seed)
        step = torch.cat([(after[n] - t).flatten() for n, t in before.items()]).double()
        steps.append(step * min(1.0, promise.clip / float(step.norm())))
    for trial in range(100):
        sent = guard(Action.PROVE, **policy)(instruction(1), context(), client(1, 2 * (trial % 2)))
        came = torch.cat([(arrays(sent)[n] - t).flatten() for n, t in before.items()]).double()
        near = [float((came - step).norm()) for step in steps]
        hits += near.index(min(near)) == trial % 2
    assert Successes(hits, 100).interval[0] <= promise.success


@pytest.mark.parametrize(
    "wrong",
    [{"action": Action.PROVE}, {"action": Action.WARN, "promise": PROMISE}],
    ids=["none", "for another action"],
)
def test_a_promise_belongs_to_the_action_that_proves(wrong):
    with pytest.raises(OptionError, match="a promise with the action that proves"):
        guard(**wrong)
    with pytest.raises(OptionError, match="a chance below a target"):
        Promise(clip=1.0, chance=0.5, target=0.4)


def test_nothing_to_stop_is_a_mistake():
    with pytest.raises(OptionError, match="at least one"):
        LeakageGuard(network(), Action.WARN, stop=frozenset())


def test_what_noise_cannot_stop_is_said_before_the_first_round():
    with pytest.raises(OptionError, match=r"some of class, composition, input, label.*got feature"):
        guard(Action.DEFEND, stop=frozenset({Leak.FEATURE}))
    with pytest.raises(OptionError, match="one trial or more, got 0"):
        guard(Action.DEFEND, seeds=0)
    guard(Action.REFUSE, stop=frozenset({Leak.FEATURE}))  # which needs no noise
