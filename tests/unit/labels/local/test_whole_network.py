"""All layers trained on one sample behind a fully connected first layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import softleak as sl
from softleak.core.client import SgdSteps, mean_gradient
from softleak.labels.local.whole import read_input
from softleak.paper import models

CLIENT = sl.Client(lr=0.02, steps=4, momentum=0.9, weight_decay=5e-4)


@pytest.fixture(scope="module")
def client():
    torch.manual_seed(0)
    model = models.mlp(24, (32, 16), 6).eval()
    x, y = torch.randn(24), torch.tensor([0.1, 0.1, 0.5, 0.1, 0.1, 0.1])
    return model, x, y / y.sum(), CLIENT.share(model, x, y / y.sum())


def test_the_input_is_read_off_the_first_layer(client):
    model, x, _, share = client
    subject = sl.Subject.of(model, (24,))
    read, error = read_input(subject, mean_gradient(subject, share, SgdSteps.of(CLIENT.training)))
    assert float((read[0] - x).abs().max()) <= 16 * error <= 1e-3


def test_the_label_is_proved_by_running_the_client_again(client):
    model, _, y, share = client
    found = sl.recover_label(model, share, evidence=False)
    assert found.status is sl.Status.UNIQUE
    assert float((found.label - y).abs().sum()) <= found.error <= 1e-3


def test_another_client_does_not_fit(client):
    model, _, y, share = client
    said = replace(share, scale=None, made_by=replace(share.made_by, steps=3))
    found = sl.recover_label(model, said, evidence=False)
    wrong = found.label is not None and float((found.label - y).abs().sum()) > found.error
    assert not (found.status is sl.Status.UNIQUE and wrong)
