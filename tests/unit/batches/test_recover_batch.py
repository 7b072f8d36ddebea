"""Every sample of a batch: labels, features, and what is not claimed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import softleak as sl
from softleak.batches.certificate import excess_bits
from softleak.batches.search import Whole
from softleak.batches.systems import HeadSpace, JointSystem, SampleSystem, supports_of
from softleak.core.errors import LabelError
from softleak.core.subject import Subject
from softleak.paper import data, models

KINDS = {
    "one-hot": (data.Hard(), sl.OneHot()),
    "smoothed": (data.Smoothing(), sl.Smoothed()),
    "mixed": (data.Mixup(), sl.Mixed()),
}


def batch(kind, size, seed=0):
    drawn = list(data.samples(data.embedded(), KINDS[kind][0], size, seed, data.CIFAR10_NORM))
    x = torch.stack([sample.x.reshape(3, 32, 32) for sample in drawn]).float()
    return x, torch.stack([sample.y.flatten() for sample in drawn]).float()


def wrong(found, y):
    """The number of labels that are called unique and are not within their bound of a label."""
    labels = y.double()
    return sum(
        float((labels - sample.label).abs().sum(1).min()) > sample.error for sample in found.proved
    )


@pytest.fixture(scope="module")
def lenet():
    return models.trained_lenet().eval()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 4])
def test_every_sample_of_a_batch(lenet, kind, size):
    x, y = batch(kind, size)
    found = sl.recover_batch(lenet, sl.capture(lenet, x, y), size=size, family=KINDS[kind][1])
    assert found.status is sl.Status.UNIQUE
    distances = torch.cdist(y.double(), torch.stack([one.label for one in found.samples]), p=1)
    assert float(distances.amin(1).max()) < 1e-5
    assert not wrong(found, y)


def test_features_are_those_of_the_samples(lenet):
    x, y = batch("smoothed", 3, seed=1)
    found = sl.recover_batch(lenet, sl.capture(lenet, x, y), size=3, family=sl.Smoothed())
    with torch.no_grad():
        true = lenet.features(x).flatten(1).double()
    got = torch.stack([sample.feature for sample in found.samples])
    off = torch.cdist(true, got).amin(0) / got.norm(dim=1)
    bounds = torch.tensor([sample.feature_error for sample in found.samples])
    assert bool((off <= bounds).all())
    assert float(off.max()) < 1e-4


def test_no_family_and_no_size_are_needed(lenet):
    """A batch of one-hot and mixed labels, of which nothing is said."""
    x, y = batch("mixed", 2, seed=2)
    more, hard = batch("one-hot", 1, seed=3)
    x, y = torch.cat([x, more]), torch.cat([y, hard])
    share = sl.capture(lenet, x, y)
    found = sl.recover_batch(lenet, share)
    assert found.size == 3
    distances = torch.cdist(y.double(), torch.stack([one.label for one in found.samples]), p=1)
    assert float(distances.amin(1).max()) < 1e-4
    assert not found.proved  # The rank is a lower bound of the number of samples.
    assert "say their number" in found.samples[0].message
    proved = sl.recover_batch(lenet, share, size=3)
    assert proved.status is sl.Status.UNIQUE
    assert not wrong(proved, y)


@pytest.mark.parametrize("factor", [0.01, 7.0])
def test_an_unknown_scale(lenet, factor):
    x, y = batch("smoothed", 3, seed=4)
    share = sl.capture(lenet, x, y).scaled(factor)
    found = sl.recover_batch(lenet, share, size=3, scale="unknown", family=sl.Smoothed())
    assert found.status is sl.Status.UNIQUE
    assert not wrong(found, y)
    assert found.samples[0].scale == pytest.approx(factor, rel=1e-3)


def test_smoothing_the_own_predictions_is_not_read_as_flat_labels(lenet):
    """``y = 0.9 p + 0.1/C``: at another factor the flat label leaves the same gradient."""
    x, _ = batch("smoothed", 2, seed=4)
    y = 0.9 * lenet(x).softmax(-1).detach() + 0.1 / 10
    share = sl.capture(lenet, x, y).scaled(0.3)
    found = sl.recover_batch(lenet, share, size=2, scale="unknown", evidence=False)
    assert len(found.samples) == 2
    assert not found.proved
    assert "all classes alike" in found.samples[0].message


def test_a_share_of_another_optimiser_is_not_called_a_part_of_a_sample(lenet):
    """Nesterov's first step is 1.9 gradients: no batch has 1.05 samples."""
    x, y = batch("one-hot", 2, seed=4)
    share = sl.capture(lenet, x, y).scaled(1.9)
    sent = sl.GradientShare(share.gradients, share.input_shape)
    found = sl.recover_batch(lenet, sent, size=2, family=sl.OneHot())
    assert not found.proved
    assert "the share was scaled, or the learning rate or optimiser is another" in found.message
    assert "more than 0.001" not in found.samples[0].message


def test_one_sample_gives_what_recover_label_gives(lenet):
    x, y = batch("smoothed", 1)
    share = sl.capture(lenet, x[0], y[0])
    alone, found = sl.recover_label(lenet, share), sl.recover_batch(lenet, share)
    assert found.status is alone.status
    torch.testing.assert_close(found.samples[0].label, alone.label)


def test_batch_norm_in_train_mode_is_no_obstacle():
    torch.manual_seed(0)
    model = models.resnet18_cifar(classes=10).train()
    x, y = batch("one-hot", 3, seed=5)
    found = sl.recover_batch(model, sl.capture(model, x, y), size=len(x), family=sl.OneHot())
    assert not wrong(found, y)
    assert len(found.proved) == 3


# To search all families in vain takes several times as long as one of them.
FAMILIES = [sl.Smoothed(), pytest.param(None, marks=pytest.mark.slow)]


def changed(name, share, lenet, x, y):
    """A share that is not the gradient of the batch that was announced."""
    if name == "noise":
        generator = torch.Generator().manual_seed(0)
        return share.map(lambda _, g: g + 1e-4 * torch.randn(g.shape, generator=generator))
    if name == "clipped":
        return share.scaled(0.3)
    if name == "pruned":
        return share.map(lambda _, g: torch.where(g.abs() > g.abs().median(), g, 0.0))
    if name == "one class":
        return sl.capture(lenet, x, torch.eye(10)[[3, 3, 3]])
    if name == "two copies":
        return sl.capture(lenet, x[[0, 0, 1]], y[[0, 0, 1]])
    stepped = models.trained_lenet().eval()
    with torch.no_grad():
        for parameter, gradient in zip(stepped.parameters(), share.values(), strict=True):
            parameter -= 0.01 * gradient
    second = sl.capture(stepped, x, y)
    return share.map(lambda n, g: g + second[n])


@pytest.mark.parametrize(
    "name", ["noise", "clipped", "pruned", "one class", "two copies", "two steps"]
)
@pytest.mark.parametrize("size", [None, 3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_wrong_is_called_unique(lenet, name, size, family):
    x, y = batch("smoothed", 3, seed=6)
    share = changed(name, sl.capture(lenet, x, y), lenet, x, y)
    labels = torch.eye(10)[[3]] if name == "one class" else y
    found = sl.recover_batch(lenet, share, size=size, family=family)
    assert not wrong(found, labels)


@pytest.mark.parametrize("family", FAMILIES)
def test_arbitrary_labels_are_not_claimed(lenet, family):
    x, _ = batch("one-hot", 2)
    y = torch.distributions.Dirichlet(torch.ones(10)).sample((2,))
    found = sl.recover_batch(lenet, sl.capture(lenet, x, y), size=2, family=family)
    assert not wrong(found, y)


def test_as_many_samples_as_classes(lenet):
    x, y = batch("one-hot", 12)
    found = sl.recover_batch(lenet, sl.capture(lenet, x, y), size=12)
    assert not wrong(found, y)


def test_fewer_samples_than_the_gradient_shows(lenet):
    x, y = batch("one-hot", 3)
    found = sl.recover_batch(lenet, sl.capture(lenet, x, y), size=2)
    assert found.status is sl.Status.NO_SOLUTION
    assert "rank 3" in found.message


@pytest.mark.parametrize("size", [0, -1, 2.0, "two"])
def test_a_size_that_is_none(lenet, size):
    x, y = batch("one-hot", 2)
    with pytest.raises(LabelError, match="number of samples"):
        sl.recover_batch(lenet, sl.capture(lenet, x, y), size=size)


def space_of(lenet, family, size=3):
    x, y = batch("smoothed", size, seed=8)
    head = sl.Head.of(lenet)
    space = HeadSpace.of(head, sl.capture(lenet, x, y)).times(float(size))
    return space, supports_of(family, 10, range(10))


@pytest.mark.parametrize("family", [sl.OneHot(), sl.Smoothed(), sl.Mixed(), sl.SmoothedMixed()])
def test_the_derivatives_of_one_sample(lenet, family):
    space, supports = space_of(lenet, family)
    basis = torch.eye(3, dtype=torch.double)
    system = SampleSystem(space, supports, basis, torch.zeros(3, dtype=torch.double))
    beta = space.coordinates(torch.rand(4, 768, dtype=torch.double))
    kind = torch.tensor([0, 3, 5, 1])
    _, J = system.jacobian(beta, kind)
    step = 1e-6 * torch.eye(3, dtype=torch.double)
    for i in range(3):
        size = float(beta[:, i].abs().mean())
        ahead = system.values(beta + size * step[i], kind)
        behind = system.values(beta - size * step[i], kind)
        slope = (ahead - behind) / (2e-6 * size)
        torch.testing.assert_close(J[..., i], slope, rtol=1e-4, atol=1e-6 * float(J.abs().max()))


@pytest.mark.parametrize("scaled", [True, False])
def test_the_derivatives_of_all_samples(lenet, scaled):
    space, supports = space_of(lenet, sl.Smoothed())
    space, supports = replace(space, scaled=scaled), supports.take(torch.tensor([1, 2, 3]))
    system = JointSystem(space, supports, torch.ones(3, 10).double())
    generator = torch.Generator().manual_seed(0)
    b = torch.eye(3).double() + 0.2 * torch.rand(3, 3, generator=generator).double()
    rest = torch.tensor([0.1, 0.2, 0.3] + ([] if scaled else [0.4]), dtype=torch.double)
    x = torch.cat([b.flatten(), rest])[None]
    kind = torch.zeros(1, dtype=torch.long)
    _, J = system.jacobian(x, kind)
    for i in range(x.shape[1]):
        step = torch.zeros_like(x)
        step[0, i] = 1e-6
        slope = (system.values(x + step, kind) - system.values(x - step, kind)) / 2e-6
        torch.testing.assert_close(J[..., i], slope, rtol=1e-5, atol=1e-6)


def test_as_many_equations_as_unknowns_test_nothing():
    rows = 1e9 * torch.rand(5, 5, dtype=torch.double)
    assert excess_bits(rows, redundant=0) == 0
    assert excess_bits(rows[:, :2], redundant=1) == pytest.approx(2 * 24, abs=6)


@pytest.mark.parametrize("logarithm", [-800.0, -60.0])
def test_a_scale_of_zero_is_no_reading(lenet, logarithm):
    """With endless features and no differences, everything is within the errors of the logits."""
    x, y = batch("smoothed", 3)
    subject = Subject.of(lenet, (3, 32, 32))
    free = replace(HeadSpace.of(subject.head, sl.capture(lenet, x, y)), scaled=False)
    supports = supports_of(sl.Smoothed(), 10, list(range(10))).take(torch.zeros(3).long())
    system = JointSystem(free, supports, torch.full((3, 10), 1e3))
    b, c = 1e5 * torch.eye(3).flatten().double(), torch.ones(3, dtype=torch.double)
    there = torch.cat([b, c, torch.tensor([logarithm], dtype=torch.double)])
    assert float(system.values(there[None], torch.zeros(1).long()).abs().max()) < 1.0
    assert not Whole(system, there, 0.4).explained
    true = JointSystem(free, supports, torch.full((3, 10), 1e-6))
    here = torch.cat([torch.eye(3).flatten().double(), c, torch.zeros(1, dtype=torch.double)])
    assert Whole(true, here, 0.4).explained


def test_small_rows_of_the_gradient_are_as_exact_as_large_ones():
    """Those of a class that is hardly ever predicted tell what the labels of others are."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(60, 40, bias=False)).double()
    delta, x = torch.randn(40, 8, dtype=torch.double), torch.randn(8, 60, dtype=torch.double)
    delta[4] *= 1e-14
    G = delta @ x
    share = sl.GradientShare({"1.weight": G}, (60,))
    space = HeadSpace.of(Subject.of(model, (60,)).head, share)
    again = (space.U * space.S) @ space.V.T / space.columns
    assert float(((again - G).norm(dim=1) / G.norm(dim=1)).max()) < 1e-10
