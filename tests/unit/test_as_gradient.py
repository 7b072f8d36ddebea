from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.client import as_gradient
from softleak.core.errors import MissingGradient
from softleak.core.factors import factor


@pytest.fixture
def subject() -> sl.Subject:
    torch.manual_seed(0)
    return sl.Subject.of(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).eval(), (6,))


def sent(subject: sl.Subject, client: sl.Client | None = None) -> sl.GradientShare:
    torch.manual_seed(1)
    return (client or sl.Client()).share(subject.model, torch.randn(6), torch.tensor(2))


def test_a_gradient_means_itself(subject):
    share = sent(subject)
    assert as_gradient(subject, share) is share


def test_one_step_of_sgd_means_its_gradient(subject):
    found = as_gradient(subject, sent(subject, sl.Client(lr=0.1, weight_decay=0.01)))
    gradient = sent(subject)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, gradient[name].double(), rtol=0, atol=1e-5)
    assert found.made_by is None


def test_other_training_is_taken_at_an_unknown_scale(subject):
    share = sent(subject, sl.Client(lr=0.1, optimiser="adam"))
    found = as_gradient(subject, share)
    assert found.scale == "unknown"
    assert torch.equal(found["0.weight"], share["0.weight"])


def test_gradient_and_factors_are_remembered_by_the_share(subject):
    share = sent(subject, sl.Client(lr=0.1, steps=3))
    gradient = as_gradient(subject, share)
    assert as_gradient(subject, share) is gradient
    assert as_gradient(subject, share.scaled(2.0)) is not gradient
    first = factor(subject.head, [gradient])
    held = factor(subject.head, [gradient])
    assert held.u.data_ptr() == first.u.data_ptr()
    assert factor(subject.head, [gradient]) is held


def test_a_withheld_head_is_named(subject):
    with pytest.raises(MissingGradient, match=r"2\.weight"):
        factor(subject.head, [sent(subject).without("2.weight")])


def test_what_a_share_remembers_is_not_sent_along(subject):
    share = sent(subject)
    share.once("key", lambda: object())
    assert share.remembers("key")
    copied = pickle.loads(pickle.dumps(share))
    assert copied.keys() == share.keys()
    assert copied.input_shape == share.input_shape
    assert not copied.remembers("key")
    assert "_made" not in repr(share)
    assert not share.without("0.bias").remembers("key")
