"""Labels that another sample can trade, and solutions whose labels are no labels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import softleak as sl
from softleak.batches.certificate import certify_alone, without_other_labels
from softleak.batches.recover import read_batch
from softleak.batches.systems import FoundSamples, HeadSpace, SamplePoints, supports_of
from softleak.core.knowledge import Knowledge
from softleak.core.subject import Subject

from .test_sure_networks import CLASSES, WIDTH, feature, smoothed, sure_head


def mixed(first: int, second: int, weight: float) -> Tensor:
    y = torch.zeros(CLASSES, dtype=torch.double)
    y[first], y[second] = 1 - weight, weight
    return y


def read(
    model: nn.Module, share: sl.GradientShare, family: sl.Family, size: int
) -> sl.BatchRecovery:
    return read_batch(Subject.of(model, (WIDTH,)), share, Knowledge(family, samples=size))


def test_a_mix_whose_class_a_sure_sample_can_take_is_not_proved():
    """The counter-example: two batches of other mixes with one gradient, weight and bias.

    The network is sure of class 3 for the second sample, a mix with class 4. What the first sample
    has of class 3 may be of class 4 as well, if the second has less of it and another feature.
    """
    model = sure_head().double()
    unsure, sure = feature(5, 0.02, 1).double(), feature(3, 1.5, 2).double()
    third = feature(7, 0.03, 3).double()
    part, t = 0.4, 0.1
    moved = (part * sure - t * unsure) / (part - t)
    own = torch.stack([mixed(2, 3, t), mixed(3, 4, part), mixed(0, 9, 0.3)])
    rival = torch.stack([mixed(2, 4, t), mixed(3, 4, part - t), mixed(0, 9, 0.3)])
    first = sl.capture(model, torch.stack([unsure, sure, third]), own)
    second = sl.capture(model, torch.stack([unsure, moved, third]), rival)
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-10, atol=1e-13)
    found = read(model.float(), first, sl.Mixed(), 3)
    assert len(found.samples) == 3
    assert [float((own[2] - one.label).abs().sum()) < 1e-4 for one in found.proved] == [True]


def test_mixes_without_a_common_class_are_proved_beside_a_sure_sample():
    model = sure_head().double()
    x = torch.stack([feature(5, 0.02, 1), feature(3, 1.5, 2), feature(7, 0.03, 3)]).double()
    y = torch.stack([mixed(2, 6, 0.1), mixed(3, 4, 0.4), mixed(0, 9, 0.3)])
    found = read(model.float(), sl.capture(model, x, y), sl.Mixed(), 3)
    assert found.status is sl.Status.UNIQUE
    off = torch.cdist(y, torch.stack([one.label for one in found.samples]), p=1)
    assert float(off.amin(1).max()) < 1e-4


@pytest.mark.parametrize(("common", "told"), [(3, False), (6, True)])
def test_a_sample_alone_is_not_proved_beside_another_label_with_its_feature(common, told):
    """Its own equations hold for both labels, if a sure sample has their difference."""
    model = sure_head().double()
    x = torch.stack([feature(5, 0.02, 1), feature(3, 1.5, 2), feature(7, 0.03, 3)]).double()
    y = torch.stack([mixed(2, common, 0.1), mixed(3, 4, 0.4), mixed(0, 9, 0.3)])
    share = sl.capture(model, x, y)
    space = HeadSpace.of(Subject.of(model, (WIDTH,)).head, share).times(3.0)
    supports = supports_of(sl.Mixed(), CLASSES, range(CLASSES))
    assert supports is not None
    b = space.coordinates(x)
    p = torch.softmax(b @ space.logit_map.T + space.offset, -1)
    kind = torch.tensor([supports.classes.index(pair) for pair in ((2, common), (3, 4), (0, 9))])
    found = FoundSamples(SamplePoints((p - y) @ space.U, b, y, p), kind)
    proof, _ = certify_alone(space, supports, found)
    assert bool(proof.regular[0])
    checked = without_other_labels(proof, space, supports, found)
    assert bool(checked.regular[0]) is told
    assert bool(checked.regular[2]) is bool(proof.regular[2])


def test_a_solution_with_a_negative_label_proves_no_sample():
    """Labels sum to one with a negative entry: no client has them, so it is another batch."""
    model = sure_head()
    x = torch.stack([feature(3, 1.0, 1), feature(8, 1.2, 2)])
    for weight, proved in ((0.35, 2), (-0.35, 0)):
        y = torch.stack([smoothed(3, 0.2), smoothed(8, weight)]).float()
        loss = -(y * model(x).log_softmax(1)).sum(1).mean()
        names = [name for name, _ in model.named_parameters()]
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        share = sl.GradientShare(dict(zip(names, gradients, strict=True)), scale="known")
        found = read(model, share, sl.Smoothed(), 2)
        assert len(found.samples) == 2
        assert len(found.proved) == proved
