"""Batches of networks that are sure of their samples: what is found, and what the data lack."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import softleak as sl
from benchmarks.batch_faint_limits import rivals_of, sent_by
from benchmarks.batch_limits import AS_NEAR, is_open
from softleak.batches.certificate import certify
from softleak.batches.recover import read_batch
from softleak.batches.search import Whole, leading_points
from softleak.batches.systems import (
    POLISH,
    HeadSpace,
    SamplePoints,
    SampleSystem,
    polish,
    supports_of,
)
from softleak.core.knowledge import Knowledge
from softleak.core.subject import Subject

CLASSES, WIDTH = 10, 24


def sure_head(lead: float = 60.0) -> nn.Module:
    """Make a head whose class k leads by this much on the feature that is one at place k alone."""
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        head.weight.mul_(0.3)
        head.weight[:, :CLASSES] += lead * torch.eye(CLASSES)
    return nn.Sequential(nn.Flatten(), head).eval()


def feature(index: int, size: float, seed: int) -> torch.Tensor:
    x = torch.rand(WIDTH, generator=torch.Generator().manual_seed(seed)) * 0.3
    x[:CLASSES] *= 0.1
    x[index] = size
    return x


def smoothed(index: int, weight: float) -> torch.Tensor:
    y = torch.full((CLASSES,), weight / CLASSES, dtype=torch.double)
    y[index] += 1 - weight
    return y


def read(model: nn.Module, share: sl.GradientShare, size: int) -> sl.BatchRecovery:
    subject = Subject.of(model, (WIDTH,))
    return read_batch(subject, share, Knowledge(sl.Smoothed(), samples=size))


def test_two_saturated_samples_of_two_classes_are_proved():
    """Either softmax is one-hot to the last bit: directions and the bias alone tell the labels."""
    model = sure_head()
    x = torch.stack([feature(3, 1.0, 1), feature(8, 1.2, 2)])
    y = torch.stack([smoothed(3, 0.2), smoothed(8, 0.35)])
    assert float(torch.softmax(model(x).detach(), -1).amax(1).min()) == 1.0
    found = read(model, replace(sl.capture(model, x, y.float()), scale="known"), 2)
    assert found.status is sl.Status.UNIQUE
    off = torch.cdist(y, torch.stack([one.label for one in found.samples]), p=1)
    assert float(off.amin(1).max()) < 1e-4


def test_a_saturated_sample_beside_an_unsure_one_is_proved():
    model = sure_head()
    x = torch.stack([feature(3, 1.0, 1), feature(5, 0.02, 2)])
    y = torch.stack([smoothed(3, 0.2), smoothed(8, 0.35)])
    found = read(model, replace(sl.capture(model, x, y.float()), scale="known"), 2)
    assert found.status is sl.Status.UNIQUE
    off = torch.cdist(y, torch.stack([one.label for one in found.samples]), p=1)
    assert float(off.amin(1).max()) < 1e-4


def test_two_samples_of_one_class_share_their_labels_out_in_more_than_one_way():
    """The counter-example: two batches of other labels with one gradient, weight and bias.

    One sample is saturated, so its ``δ`` is ``c (e − 1/C)``. What the label of the other gains, it
    can lose, if its feature moves along the line through both features.
    """
    model = sure_head().double()
    one, other = feature(3, 0.08, 1).double(), feature(3, 1.5, 2).double()
    c, t = 0.5, 0.1
    moved = (c * other - t * one) / (c - t)
    first = sl.capture(
        model, torch.stack([one, other]), torch.stack([smoothed(3, 0.2), smoothed(3, c)])
    )
    second = sl.capture(
        model, torch.stack([one, moved]), torch.stack([smoothed(3, 0.2 + t), smoothed(3, c - t)])
    )
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-10, atol=1e-13)
    found = read(model.float(), first, 2)
    assert not found.proved


@pytest.mark.parametrize("left", [1e-6, 1e-9])
def test_a_sample_whose_feature_runs_away_takes_the_proof_of_the_other_with_it(left):
    """At the end of that valley a feature is endless, and the other label looks well determined."""
    model = sure_head().double()
    one, other, c = feature(3, 0.08, 1).double(), feature(3, 1.5, 2).double(), 0.5
    y = torch.stack([smoothed(3, 0.2), smoothed(3, c)])
    share = sl.capture(model, torch.stack([one, other]), y)
    space = HeadSpace.of(Subject.of(model, (WIDTH,)).head, share).times(2.0)
    moved = (c * other - (c - left) * one) / left
    b = space.coordinates(torch.stack([one, moved]))
    label = torch.stack([smoothed(3, 0.2 + c - left), smoothed(3, left)])
    p = torch.softmax(b @ space.logit_map.T + space.offset, -1)
    supports = supports_of(sl.Smoothed(), CLASSES, range(CLASSES)).take(torch.tensor([3, 3]))
    at = SamplePoints(torch.linalg.inv(b).mT, b, label, p)
    system, x = polish(space, supports, at, solver=replace(POLISH, iterations=0))
    assert torch.cdist(system.point(x).label, y, p=1).amin() > 0.3
    proof = certify(system, x, 1.0)
    assert float(proof.label_errors.max()) < 1e-3
    assert not proof.regular.any()


def test_two_sure_samples_of_one_class_are_found_and_their_labels_are_open():
    """A rival batch of other labels comes as near to the share as the truth, so none is proved."""
    model = sure_head()
    x = torch.stack([feature(3, 0.28, 4), feature(3, 0.16, 5)])
    y = torch.stack([smoothed(3, 0.35), smoothed(3, 0.07)])
    share = sl.capture(model, x, y.float())
    found = read(model, share, 2)
    assert len(found.samples) == 2
    assert not found.proved
    for one in found.samples:
        assert float((y - one.label).abs().sum(1).min()) < one.error < 0.1
    head = Subject.of(model, (WIDTH,)).head
    assert is_open(head, share, x.double(), y, 0)
    told = torch.stack([feature(3, 1.0, 1), feature(8, 1.2, 2)])
    other = torch.stack([smoothed(3, 0.2), smoothed(8, 0.35)])
    assert not is_open(head, sl.capture(model, told, other.float()), told.double(), other, 0)


def test_a_sure_network_sends_nothing_of_a_one_hot_label_that_it_predicts():
    """The counter-example: batches of other classes and features with one gradient, all zero."""
    model = sure_head(120.0)
    shares = [
        sl.capture(
            model, torch.stack([feature(i, 1.0, i), feature(j, 1.0, j)]), torch.tensor([i, j])
        )
        for i, j in ((0, 1), (7, 4))
    ]
    for name in shares[0]:
        assert float(shares[0][name].abs().max()) == float(shares[1][name].abs().max()) == 0.0


def test_a_batch_at_another_scale_than_the_assumed_one_is_not_proved():
    model = sure_head(4.0)
    x = torch.stack([feature(3, 1.0, 1), feature(8, 1.2, 2)])
    y = torch.stack([smoothed(3, 0.2), smoothed(8, 0.35)]).float()
    share = sl.capture(model, x, y)
    assert len(read(model, share, 2).proved) == 2
    assert not read(model, share.scaled(0.7), 2).proved


def test_starting_points_lead_by_what_was_asked():
    model = sure_head()
    x = torch.stack([feature(3, 1.0, 1), feature(8, 1.2, 2), feature(5, 0.02, 3)])
    share = sl.capture(model, x, torch.tensor([1, 2, 5]))
    space = HeadSpace.of(Subject.of(model, (WIDTH,)).head, share)
    supports = supports_of(sl.Smoothed(), CLASSES, range(CLASSES))
    identity = torch.eye(space.rank, dtype=torch.double)
    system = SampleSystem(space, supports, identity, torch.zeros_like(identity[0]))
    leads = torch.linspace(0.5, 20, 8, dtype=torch.double)
    M, offset = system.logits
    logits = leading_points(system, torch.arange(8), leads) @ M.T + offset
    top = logits.amax(-1)
    others = logits.scatter(-1, logits.argmax(-1, keepdim=True), -torch.inf).logsumexp(-1)
    torch.testing.assert_close(top - others, leads, rtol=1e-6, atol=1e-6)


def test_a_layer_of_another_size_than_the_input_is_no_obstacle():
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.Sigmoid(), nn.Flatten())
    model = nn.Sequential(first, nn.Linear(8 * 36, 24), nn.Sigmoid(), nn.Linear(24, 7)).eval()
    x = torch.rand(2, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    found = sl.recover_batch(model, sl.capture(model, x, torch.tensor([1, 4])), size=2)
    assert {one.class_index for one in found.proved} == {1, 4}


def test_sixteen_samples_that_look_like_three_are_not_proved_to_be_three():
    """The counter-example: with one prediction for all, classes can be shared out anew.

    Weights of zero predict the same for every input, so that the gradient of a batch has the rank
    of the number of its classes.
    """
    head = nn.Linear(WIDTH, CLASSES)
    nn.init.zeros_(head.weight)
    model = nn.Sequential(nn.Flatten(), head).eval()
    x = torch.rand(16, WIDTH, generator=torch.Generator().manual_seed(0))
    share = sl.capture(model, x, torch.tensor([0, 2, 2, 5] * 4))
    for size in (None, 16):
        assert not sl.recover_batch(model, share, size=size, family=sl.OneHot()).proved


def faint_pair(second: float) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Make a head and two samples that it predicts: the second has a feature of this size.

    The probabilities of the first range from a half down to 1e-9, those of the second do not.
    """
    model = sure_head(10.0)
    x = torch.stack([feature(3, 0.1, 1), feature(8, second, 2)])
    x[0, :CLASSES] -= torch.linspace(0, 2, CLASSES)
    x[0, 3] = 0.1
    return model, x, torch.tensor([3, 8])


@pytest.mark.parametrize("second", [1.6, 2.0])
def test_a_faint_sample_beside_a_bright_one_is_told_by_the_rows_it_leads(second):
    """Its gradient is 1e-6 to 1e-8 of the other's, but each row is exact to a part of its own."""
    model, x, y = faint_pair(second)
    share = sl.capture(model, x, y)
    subject = Subject.of(model, (WIDTH,))
    found = read_batch(subject, share, Knowledge(sl.OneHot(), samples=2))
    assert HeadSpace.of(subject.head, share).rank == 1
    assert found.status is sl.Status.UNIQUE
    assert {one.class_index for one in found.samples} == {3, 8}


def test_two_samples_that_the_network_is_sure_of_are_proved_from_their_faint_probabilities():
    """``p − 1`` is rounded to 6e-8 and tells nothing of a sample at 1e-9; the others are exact."""
    model = sure_head(10.0)
    x = torch.stack([feature(3, 2.2, 1), feature(8, 1.9, 2)])
    p = torch.softmax(model.double()(x.double()).detach(), -1)
    assert float((1 - p.amax(1)).max()) < 6e-8
    share = sl.capture(model.float(), x, torch.tensor([3, 8]))
    found = read_batch(Subject.of(model, (WIDTH,)), share, Knowledge(sl.OneHot(), samples=2))
    assert found.status is sl.Status.UNIQUE
    assert {one.class_index for one in found.samples} == {3, 8}


def test_a_sample_below_the_rounding_of_the_other_has_rivals_of_every_class():
    """The counter-example: samples of other classes leave the numbers that are sent as they are."""
    model, x, y = faint_pair(6.0)
    share = sl.capture(model, x, y)
    for index in (0, 1, 5, 9):
        other = torch.stack([x[0], feature(index, 6.0, 7)])
        rival = sl.capture(model, other, torch.tensor([3, index]))
        for name in share:
            torch.testing.assert_close(share[name], rival[name], rtol=1e-6, atol=0.0)
    head = Subject.of(model, (WIDTH,)).head
    sent, pool = sent_by(head, share), feature(5, 6.0, 7).double()[None]
    assert rivals_of(head, sent, x.double(), y, 1, pool, 5) < AS_NEAR
    found = read_batch(Subject.of(model, (WIDTH,)), share, Knowledge(sl.OneHot(), samples=2))
    assert not found.proved
    seen = faint_pair(1.0)
    told = sent_by(head, sl.capture(*seen))
    assert rivals_of(head, told, seen[1].double(), seen[2], 1, pool, 5) > AS_NEAR


@pytest.mark.parametrize("second", [3.2, 3.6])
def test_a_sample_at_the_edge_of_rounding_is_not_proved_to_be_of_another_class(second):
    """Labels of several classes fit there, so that what is found of it may be wrong."""
    model, x, _ = faint_pair(0.0)
    x[1] = feature(3, second, 2)
    share = sl.capture(model, x, torch.tensor([3, 3]))
    found = read_batch(Subject.of(model, (WIDTH,)), share, Knowledge(sl.OneHot(), samples=2))
    assert {one.class_index for one in found.proved} <= {3}
    assert 3 in {one.class_index for one in found.samples}


def test_a_faint_sample_that_is_smaller_than_its_errors_explains_nothing():
    """A fit once gave a faint sample the feature of the other, a wrong class and endless errors."""
    model, x, y = faint_pair(1.6)
    share = sl.capture(model, x, y)
    space = HeadSpace.of(Subject.of(model, (WIDTH,)).head, share).levelled().times(2.0)
    b = space.coordinates(x.double())
    p = torch.softmax(b @ space.logit_map.T + space.offset, -1)
    own = supports_of(sl.OneHot(), CLASSES, range(CLASSES)).take(y)
    system, z = polish(space, own, SamplePoints(torch.linalg.inv(b).mT, b, own.origin, p))
    assert Whole(system, z, 0.3).explained
    errors = system.errors.clone()
    errors[1] = 10 * (p - own.origin)[1].abs().max()
    assert not Whole(replace(system, errors=errors), z, 0.3).explained
