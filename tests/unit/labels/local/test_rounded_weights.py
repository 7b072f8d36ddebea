"""Rounded weights are intervals: they hold the truth, and give the label better than a mean."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from benchmarks.local_training.same_weights import differing
from softleak.core.client import SgdSteps, mean_of_head
from softleak.core.factors import factor
from softleak.labels.local.head_alone import RoundedUpdate

ENTRIES, CLASSES = 400, 8


@pytest.fixture(scope="module")
def model():
    """A head on features that are given."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(ENTRIES, CLASSES, bias=False))


def drawn(count, seed=0):
    """Return short features, whose updates are not much larger than the rounding of weights."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, ENTRIES, generator=generator) * 0.02
    smoothing = 0.1 + 0.3 * torch.rand(count, 1, generator=generator, dtype=torch.double)
    y = torch.eye(CLASSES, dtype=torch.double)[torch.arange(count) % CLASSES]
    return list(zip(x, (1 - smoothing) * y + smoothing / CLASSES, strict=True))


def updated(model, client, x, y):
    share = client.share(model, x, y)
    subject = sl.Subject.of(model, (ENTRIES,))
    return subject, share, SgdSteps.of(client.training)


def mean_difference(model, client, x, y):
    """Return the mean of ``p − y`` over the steps, computed in float64."""
    double = nn.Sequential(nn.Linear(ENTRIES, CLASSES, bias=False)).double()
    double.load_state_dict({n: p.double() for n, p in model.state_dict().items()})
    subject, share, recipe = updated(double, client, x.double(), y)
    return mean_of_head(subject, share, recipe)["0.weight"] @ x.double() / x.double().square().sum()


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ("lr=0.001", 0.5),
        ("lr=0.001,steps=2,weight_decay=0.0005", 0.7),
        ("lr=0.001,steps=4,momentum=0.9", 1.0),  # a larger update, with the roundings of four steps
    ],
)
def test_intervals_hold_the_truth_and_their_middle_is_nearer_than_a_singular_vector(
    model, settings, part
):
    client, near, far = sl.Client.parse(settings), [], []
    for x, y in drawn(4):
        subject, share, recipe = updated(model, client, x, y)
        true = mean_difference(model, client, x, y)
        update = RoundedUpdate.of(subject, share, recipe)
        product = torch.outer(true, x.double())
        assert bool(((update.low <= product) & (product <= update.high)).all())
        first = factor(subject.head, [mean_of_head(subject, share, recipe)])
        found = update.factors(first)
        for some, kept in ((found, near), (first, far)):
            u = some.u[0] * (some.u[0] @ true).sign()
            kept.append(float((u - true / true.norm()).norm()))
    assert sum(near) < part * sum(far)


def test_labels_that_rounding_leaves_open_come_out_better_than_by_their_misfit(model):
    samples, client = drawn(12, 1), sl.Client(lr=0.001)
    shares = [client.share(model, x, y) for x, y in samples]
    answers = sl.recover_labels(model, shares, input_shape=(ENTRIES,))
    new, old = [], []
    for found, (_, y) in zip(answers, samples, strict=True):
        assert found.status is sl.Status.AMBIGUOUS
        off = float((found.label - y).abs().sum())
        assert off <= found.error
        new.append(off)
        best = min(found.solutions, key=lambda one: one.misfit)
        old.append(float((best.label - y).abs().sum()))
    assert sum(new) < 0.7 * sum(old)


def test_what_is_no_product_or_not_rounded_as_said_is_left_as_it_is(model):
    (x, y), (other, label) = drawn(2)
    client = sl.Client(lr=0.1)
    subject, share, recipe = updated(model, client, x, y)
    first = factor(subject.head, [mean_of_head(subject, share, recipe)])
    assert RoundedUpdate.of(subject, share.scaled(1.1), recipe) is None
    two = client.share(model, torch.stack([x, other]), torch.stack([y, label]))
    assert RoundedUpdate.of(subject, two, recipe).factors(first) is None


def test_another_label_leads_to_the_same_weights_only_if_it_is_very_near(model):
    before = model[0].weight.detach()
    for x, y in drawn(3, 2):
        delta = torch.softmax(before.double() @ x.double(), 0) - y
        after = (before.double() - 0.001 * torch.outer(delta, x.double())).float()
        flat = torch.full_like(y, 1 / CLASSES)
        labels = torch.stack([y, torch.lerp(y, flat, 1e-7), torch.lerp(y, flat, 0.1)])
        unlike = differing(before, torch.zeros(CLASSES).double(), after, 0.001, labels, x.double())
        assert unlike[:2].tolist() == [0, 0]
        assert int(unlike[2]) > 0.01 * before.numel()
