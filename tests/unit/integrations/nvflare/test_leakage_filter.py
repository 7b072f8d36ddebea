from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from torch import nn

import softleak as sl
from softleak.audit import Options
from softleak.audit.metrics import psnr
from softleak.core.errors import ModelError, OptionError
from softleak.core.knowledge import Knowledge
from softleak.guard.guard import Promise
from softleak.guard.nvflare import LeakageFilter, own_step
from softleak.paper.data import Normalisation

SHAPE, LR = (3, 4, 4), 0.1
KINDS = [DataKind.WEIGHT_DIFF, DataKind.WEIGHTS]


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(48, 16), nn.Sigmoid(), nn.Linear(16, 4, bias=False)
        )


def guard(action: str, **options) -> LeakageFilter:
    model = f"{__name__}:network"
    return LeakageFilter(model, action, lr=LR, input_shape=SHAPE, **{"seeds": 1, **options})


def told(tested: LeakageFilter) -> FLContext:
    """The context of a task that brings the network's weights, which the filter has seen."""
    context = FLContext()
    weights = {name: tensor.numpy() for name, tensor in network().state_dict().items()}
    task = DXO(DataKind.WEIGHTS, weights).to_shareable()
    context.set_prop(FLContextKey.TASK_DATA, task, private=True, sticky=False)
    tested.handle_event(EventType.BEFORE_TASK_EXECUTION, context)
    return context


def image() -> torch.Tensor:
    """The client's only sample."""
    return torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(1))


def update(kind: str) -> dict[str, np.ndarray]:
    """One step on one sample."""
    model = network()
    x = image()
    F.cross_entropy(model(x), torch.tensor([2])).backward()
    before = {n: p.detach().numpy() for n, p in network().named_parameters()}
    after = {n: (p.detach() - LR * p.grad).numpy() for n, p in model.named_parameters()}
    return after if kind == DataKind.WEIGHTS else {n: after[n] - before[n] for n in after}


def sent(tested: LeakageFilter, kind: str) -> dict[str, np.ndarray]:
    context = told(tested)
    return from_shareable(tested.process(DXO(kind, update(kind)).to_shareable(), context)).data


@pytest.mark.parametrize("kind", KINDS)
def test_a_warning_lets_the_update_out_as_it_is_and_says_what_it_gives_away(kind, caplog):
    left = sent(guard("warn"), kind)
    assert all(np.array_equal(left[name], array) for name, array in update(kind).items())
    assert "exact label" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_blocks_it(kind):
    with pytest.raises(ContentBlockedException, match="gives away: input"):
        sent(guard("refuse"), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_proof_lets_out_public_noise_and_nothing_else_until_the_promise_is_spent(kind):
    promise = {"clip": 0.05, "chance": 0.25, "target": 0.5, "rounds": 2}
    tested = guard("prove", promise=promise)
    for _ in range(2):
        context, plain = told(tested), update(kind)
        meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: 3, "train_loss": 0.5}
        left = from_shareable(tested.process(DXO(kind, plain, meta).to_shareable(), context))
        assert set(left.meta) == {MetaKey.NUM_STEPS_CURRENT_ROUND, "filter_history"}
        off = np.concatenate([(left.data[n] - plain[n]).ravel() for n in plain])
        assert off.std() == pytest.approx(Promise(**promise).noise, rel=0.1)
    with pytest.raises(ContentBlockedException, match="2 updates were promised, and sent"):
        sent(tested, kind)
    with pytest.raises(ContentBlockedException, match="METRICS cannot be audited"):
        tested.process(DXO(DataKind.METRICS, {"loss": 0.5}).to_shareable(), told(tested))


@pytest.mark.parametrize("kind", KINDS)
def test_behind_the_defence_an_audit_does_not_find_the_input(kind):
    tested = guard("defend")
    left, plain = sent(tested, kind), update(kind)
    assert all(left[n].dtype == plain[n].dtype and left[n].shape == plain[n].shape for n in plain)
    assert not np.allclose(left["1.weight"], plain["1.weight"], atol=1e-6)
    share = own_step(dict(network().state_dict()), DXO(kind, left), LR).share
    as_they_are = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    options = Options(Knowledge(scale="known"), seconds=0.0, normalisation=as_they_are)
    found = sl.audit(network(), share, input_shape=SHAPE, options=options).input
    assert found.pixels is None or psnr(found.pixels, image()[0]) < 20


def test_what_was_not_attacked_is_blocked_if_so_asked():
    head = {"3.weight": update(KINDS[0])["3.weight"]}  # an image is not computed from this alone
    for refuse in (False, True):
        tested = guard("warn", refuse_unattacked=refuse)
        context, held = told(tested), DXO(KINDS[0], dict(head)).to_shareable()
        if not refuse:
            assert np.array_equal(
                from_shareable(tested.process(held, context)).data["3.weight"], head["3.weight"]
            )
            continue
        with pytest.raises(ContentBlockedException, match="it was not attacked: input"):
            tested.process(held, context)


def test_the_time_for_images_that_cannot_be_walked_back_to_is_an_option():
    assert guard("warn").guard.question.seconds == 0.0
    assert guard("warn", match_seconds=60.0).guard.question.seconds == 60.0


def test_what_fails_inside_does_not_let_the_update_out(monkeypatch):
    tested = guard("warn")
    monkeypatch.setattr(tested.guard, "outcome", lambda *_: 1 / 0)
    with pytest.raises(ContentBlockedException, match="does not leave: division by zero"):
        sent(tested, DataKind.WEIGHT_DIFF)


@pytest.mark.parametrize("action", ["warn", "defend", "refuse"])
def test_an_update_whose_weights_before_it_are_not_known_is_blocked(action):
    with pytest.raises(ContentBlockedException, match="are not known"):
        guard(action).process(DXO(KINDS[0], update(KINDS[0])).to_shareable(), FLContext())


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (DataKind.WEIGHT_DIFF, {"1.weight": np.full((16, 48), np.nan, np.float32)}),
        (DataKind.WEIGHT_DIFF, {"another": np.zeros(3, np.float32)}),
        (DataKind.WEIGHT_DIFF, {"1.weight": np.zeros((2, 2), np.float32)}),
        (DataKind.APP_DEFINED, {"anything": "at all"}),
        (DataKind.COLLECTION, {"one": DXO(DataKind.STATISTICS, {"mean": 1.0})}),
    ],
    ids=["NaN", "strange name", "strange shape", "strange kind", "within a collection"],
)
def test_what_cannot_be_audited_is_blocked_whatever_the_action(kind, data):
    tested = guard("warn")
    context = told(tested)
    with pytest.raises(ContentBlockedException, match="does not leave"):
        tested.process(DXO(kind, data).to_shareable(), context)


def test_what_is_no_exchange_object_is_blocked():
    held = Shareable()
    held["weights"] = update(DataKind.WEIGHTS)
    with pytest.raises(ContentBlockedException):
        guard("warn").process(held, FLContext())


def test_an_error_leaves_without_what_comes_with_it():
    held = DXO(DataKind.WEIGHTS, update(DataKind.WEIGHTS)).to_shareable()
    held.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
    left = guard("defend").process(held, FLContext())
    assert left.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert "DXO" not in left


def test_metrics_pass():
    held = DXO(DataKind.METRICS, {"accuracy": 0.5}).to_shareable()
    assert from_shareable(guard("refuse").process(held, FLContext())).data == {"accuracy": 0.5}


def test_a_wrong_configuration_is_said_at_once():
    with pytest.raises(OptionError, match="warn, defend, refuse, prove as the action, got 'drop'"):
        guard("drop")
    with pytest.raises(OptionError, match="expected one of label"):
        guard("warn", stop=["face"])
    with pytest.raises(ModelError, match=r"package\.module:factory, got 'lenet'"):
        LeakageFilter("lenet")
