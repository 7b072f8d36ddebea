"""Inputs of a batch behind several local steps of a fully connected network."""

from __future__ import annotations

import pytest
import torch

import softleak as sl
from softleak.audit import Leak, Options, audit
from softleak.audit.report import Outcome
from softleak.core.vocabulary import State
from softleak.paper import models
from softleak.present.catalogue import endings

CLIENTS = ["lr=0.01,steps=6,batch_size=2", "lr=0.02,steps=6,batch_size=2,momentum=0.9",
           "lr=0.01,epochs=3,batch_size=2,weight_decay=0.001"]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return models.mlp(40, (96, 32), 6).eval()


def batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 40, generator=generator), torch.arange(count) % 6


@pytest.mark.parametrize("settings", CLIENTS)
def test_every_input_is_found_whatever_the_steps(model, settings):
    x, y = batch(4)
    share = sl.Client.parse(settings).share(model, x, y)
    found = sl.recover_batch(model, share, size=4)
    off = torch.cdist(x.double(), found.inputs).min(1).values
    assert len(found.inputs) == 4
    assert float(off.max()) < 1e-2
    assert found.status is sl.Status.AMBIGUOUS  # no label is claimed
    assert not found.samples


def test_an_unknown_number_of_samples_leaves_weight_decay(model):
    x, y = batch(4)
    share = sl.Client.parse(CLIENTS[2]).share(model, x, y)
    found = sl.recover_batch(model, share)
    assert found.inputs is None


def test_an_audit_says_that_the_inputs_leak_and_no_label_was_attacked(model):
    x, y = batch(3)
    share = sl.Client.parse(CLIENTS[0]).share(model, x, y)
    report = audit(model, share, input_shape=(40,))
    assert report.states[Leak.INPUT] is State.LEAKED
    assert report.states[Leak.LABEL] is State.NOT_ATTACKED
    assert "3 samples" in report.input.message


def test_an_epoch_of_batches_is_not_one_step(model):
    x, y = batch(4)
    share = sl.Client.parse("lr=0.01,epochs=1,batch_size=2").share(model, x, y)
    report = audit(model, share, input_shape=(40,))
    assert report.states[Leak.INPUT] is State.LEAKED


def test_an_audit_does_not_call_a_convolution_attacked():
    torch.manual_seed(0)
    model = models.lenet(image=16).eval()
    share = sl.Client(lr=0.01, steps=2).share(model, torch.randn(3, 16, 16), 1)
    report = audit(model, share, options=Options(seconds=0.0))
    assert report.states[Leak.INPUT] is State.NOT_ATTACKED
    assert "--samples 1" in report.input.message


def test_the_catalogue_says_which_attack_found_the_inputs(model):
    x, y = batch(3)
    share = sl.Client.parse(CLIENTS[0]).share(model, x, y)
    ends = {
        attack: outcome
        for attack, (outcome, _) in endings(audit(model, share, input_shape=(40,))).items()
    }
    assert ends["input-local-first-layer"] is Outcome.SUCCEEDED
    assert ends["input-local-matching"] is Outcome.NOT_APPLICABLE
