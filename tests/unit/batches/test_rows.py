"""Batches larger than a search of one sample at a time reaches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.batches.rows import RowSystem
from softleak.batches.systems import HeadSpace, supports_of
from softleak.core.subject import Subject
from softleak.paper import data, models


def images(count):
    """Different images: a stream draws some of them twice."""
    drawn = data.samples(data.embedded(), data.Hard(), 3 * count, 5, data.CIFAR10_NORM)
    x = torch.stack([sample.x.reshape(3, 32, 32) for sample in drawn]).float()
    return x.unique(dim=0)[:count]


def lenet(classes, bias=False, seed=0):
    torch.manual_seed(seed)
    model = models.lenet(classes=classes)
    model.classifier = nn.Linear(model.classifier.in_features, classes, bias=bias)
    return model.eval()


def smooth(classes, count, most=0.5):
    amount = most * torch.rand(len(classes), 1, generator=torch.Generator().manual_seed(1))
    return torch.eye(count)[classes] * (1 - amount) + amount / count


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("family", [sl.OneHot(), sl.Smoothed()])
def test_sixteen_samples_of_a_hundred_classes(bias, family):
    model = lenet(100, bias)
    classes = torch.randperm(100, generator=torch.Generator().manual_seed(2))[:16]
    y = torch.eye(100)[classes] if family == sl.OneHot() else smooth(classes, 100)
    share = sl.capture(model, images(16), y)
    found = sl.recover_batch(model, share, size=16, family=family, evidence=bias)
    assert found.status is sl.Status.UNIQUE
    labels = torch.stack([one.label for one in found.samples])
    assert float(torch.cdist(y.double(), labels, p=1).amin(1).max()) < 1e-3


def test_two_samples_of_one_class_start_from_a_split_of_its_row():
    torch.manual_seed(0)
    model = models.uniform_(models.lenet(classes=100)).eval()
    y = smooth(torch.tensor([*range(12), 3]), 100, most=0.3)
    share = sl.capture(model, images(13), y)
    found = sl.recover_batch(model, share, size=13, family=sl.Smoothed(), evidence=False)
    labels = torch.stack([one.label for one in found.samples])
    assert float(torch.cdist(y.double(), labels, p=1).amin(1).max()) < 1e-3
    assert len(found.proved) >= 11


def test_more_samples_than_the_rank_are_shown_and_not_claimed():
    """Two samples of one class whose predictions are alike leave one vector of the gradient."""
    model = lenet(100)
    y = torch.eye(100)[[*range(14), 2, 3]]
    found = sl.recover_batch(model, sl.capture(model, images(16), y), size=16, family=sl.OneHot())
    assert found.status is sl.Status.AMBIGUOUS
    assert not found.proved
    labels = torch.stack([one.label for one in found.samples])
    assert torch.equal(labels.sum(0).round(), y.double().sum(0))


def test_the_normal_equations_are_those_of_the_residuals():
    model = lenet(12, bias=True)
    y = smooth(torch.arange(4), 12)
    subject = Subject.of(model, (3, 32, 32))
    space = HeadSpace.of(subject.head, sl.capture(model, images(4), y)).times(4.0)
    system = RowSystem(space, supports_of(sl.Smoothed(), 12, range(12)).take(torch.arange(4)))
    torch.manual_seed(0)
    z, c = torch.randn(4, 4, dtype=torch.double), torch.rand(4, 1, dtype=torch.double)

    def values(x):
        rest, _, further = system.residuals(x[:, :4], x[:, 4:])
        return torch.cat([rest.flatten(), further])

    x = torch.cat([z, c], 1)
    J = torch.autograd.functional.jacobian(values, x).flatten(1)
    H, slope = system.normal(z, c)
    assert torch.allclose(H, J.T @ J, rtol=1e-8, atol=1e-8 * float(H.abs().max()))
    assert torch.allclose(slope, J.T @ values(x), rtol=1e-8, atol=1e-8 * float(slope.abs().max()))
