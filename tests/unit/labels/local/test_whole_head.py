"""All layers are trained on one sample: the label follows from the head's update alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.client import SgdSteps
from softleak.labels.local.whole import recover_by_head

CLIENT = sl.Client(lr=0.1, steps=3, momentum=0.9, weight_decay=1e-3)
RECIPE = SgdSteps.of(CLIENT.training)


def subject_of(bias: bool) -> sl.Subject:
    """A small convolutional network with eight classes, whose first layer gives no input."""
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 4, 3, stride=2), nn.Tanh()]
    model = nn.Sequential(*body, nn.Flatten(), nn.Linear(36, 8, bias=bias))
    return sl.Subject.of(model, (1, 8, 8))


def smoothed(index: int) -> torch.Tensor:
    label = torch.full((8,), 0.02).double()
    label[index] = 0.86
    return label


@pytest.mark.parametrize("bias", [False, True])
def test_the_label_is_exact_and_not_called_proved(bias):
    subject, y = subject_of(bias), smoothed(2)
    share = CLIENT.share(subject.model, torch.randn(1, 8, 8), y)
    found = sl.recover_label(subject.model, share, evidence=False)
    assert found.status is sl.Status.AMBIGUOUS
    assert "other labels were not excluded" in found.message
    assert float((found.label - y).abs().sum()) <= min(found.error, 1e-3)


def test_several_samples_have_no_single_label():
    subject = subject_of(False)
    x, y = 3 * torch.randn(4, 1, 8, 8), torch.stack([smoothed(i) for i in (0, 3, 5, 6)])
    share = CLIENT.share(subject.model, x, y)
    assert recover_by_head(subject, sl.Knowledge(samples=4), share, RECIPE) is None
    found = recover_by_head(subject, sl.Knowledge(), share, RECIPE)
    assert found is None or found.label is None


def test_another_client_is_not_explained():
    subject = subject_of(True)
    share = CLIENT.share(subject.model, torch.randn(1, 8, 8), smoothed(1))
    said = replace(CLIENT.training, lr=0.03)
    found = recover_by_head(subject, sl.Knowledge(), share, SgdSteps.of(said))
    assert found is None or found.label is None
