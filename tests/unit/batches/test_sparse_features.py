"""Labels and features of a batch from the last two layers, and no false proof."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import softleak as sl
from softleak.batches.sparse.attacks import (
    FeatureFit,
    FeatureProblem,
    recover_by_features,
    tail_inputs,
)
from softleak.batches.sparse.directions import sparse_directions
from softleak.batches.sparse.layer import layers_before_head
from softleak.batches.systems import GradientSpace
from softleak.core.knowledge import Knowledge
from softleak.core.results import BatchRecovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.paper import models

from .test_resimulate import drawn, vouched


def network() -> nn.Module:
    """A convolution, then fully connected layers with a ReLU, as in AlexNet and VGG."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 14 * 14, 200),
        nn.ReLU(),
        nn.Linear(200, 20),
    )


def labels(size: int, seed: int = 0) -> Tensor:
    y = -torch.rand(size, 20, generator=torch.Generator().manual_seed(seed)).log()
    return y / y.sum(1, keepdim=True)


def attack(model: nn.Module, share: GradientShare, size: int | None) -> BatchRecovery:
    found = recover_by_features(Subject.of(model, (3, 32, 32)), share, Knowledge(samples=size))
    assert found is not None
    return found


def fitted(subject: Subject, share: GradientShare) -> tuple[FeatureProblem, FeatureFit]:
    """The equations of the last two layers and their solution."""
    head = subject.head
    G = share[head.weight_name].double().T.contiguous()
    space = GradientSpace.of(G, share.resolution(head.weight_name, head.dtype), 0.0)
    zeros = sparse_directions(space.R, space.errors).zeros
    problem = FeatureProblem.of(subject, share, space, zeros, layers_before_head(subject)[0])
    return problem, problem.solve()


def check_no_false_proof(found: BatchRecovery, y: Tensor) -> None:
    for sample in found.proved:
        assert sample.label is not None
        assert float((sample.label - y.double()).abs().sum(1).min()) <= sample.error < 1e-3


@pytest.mark.parametrize("size", [2, 5, 8])
def test_every_label_and_feature_is_proved(size):
    model, (x, _), y = network(), drawn(size), labels(size)
    found = attack(model, vouched(model, x, y), size)
    assert found.status is Status.UNIQUE, found.message
    assert found.inputs is None
    check_no_false_proof(found, y)
    with torch.no_grad():
        true = model[:-1](x).double()
    features = torch.stack([s.feature for s in found.samples if s.feature is not None])
    order = torch.cdist(true, features).argmin(1)
    assert sorted(order.tolist()) == list(range(size))
    relative = (features[order] - true).norm(dim=1) / true.norm(dim=1)
    assert relative.max() < 1e-5
    found_labels = torch.stack([s.label for s in found.samples if s.label is not None])[order]
    assert (found_labels - y.double()).abs().sum(1).max() < 1e-5


@pytest.mark.parametrize("said", [None, 3, 6])
def test_a_size_that_is_not_known_or_wrong_proves_nothing(said):
    model, (x, _), y = network(), drawn(5), labels(5)
    assert not attack(model, vouched(model, x, y), said).proved


def test_duplicates_prove_nothing():
    model, (x, _), y = network(), drawn(5), labels(5)
    x[1] = x[0]
    assert not attack(model, vouched(model, x, y), 5).proved


def test_clipping_proves_nothing():
    model, (x, _), y = network(), drawn(5), labels(5)
    assert not attack(model, vouched(model, x, y).scaled(0.5), 5).proved


@pytest.mark.parametrize("level", [1e-7, 1e-5, 1e-3])
def test_noise_makes_no_false_proof(level):
    model, (x, _), y = network(), drawn(5), labels(5)
    generator = torch.Generator().manual_seed(0)
    share = vouched(model, x, y)
    noisy = GradientShare(
        {n: g + level * torch.randn(g.shape, generator=generator) for n, g in share.items()},
        scale="known",
    )
    found = recover_by_features(Subject.of(model, (3, 32, 32)), noisy, Knowledge(samples=5))
    if found is not None:
        check_no_false_proof(found, y)


def test_as_many_samples_as_classes_are_left_to_other_attacks():
    model, (x, _), y = network(), drawn(24), labels(24)
    subject = Subject.of(model, (3, 32, 32))
    assert recover_by_features(subject, vouched(model, x, y), Knowledge(samples=24)) is None


def test_a_share_without_the_bias_before_is_left_to_other_attacks():
    model, (x, _), y = network(), drawn(3), labels(3)
    share = vouched(model, x, y).without("3.bias")
    subject = Subject.of(model, (3, 32, 32))
    assert recover_by_features(subject, share, Knowledge(samples=3)) is None


def deep_network(dropout: float = 0.5) -> nn.Module:
    """A convolution and three fully connected layers with dropout before two of them."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(8 * 14 * 14, 160),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(160, 120),
        nn.ReLU(inplace=True),
        nn.Linear(120, 20, bias=False),
    )


def test_the_tail_is_followed_down_to_what_it_reads():
    model, (x, _), y = deep_network().eval(), drawn(4), labels(4)
    subject, share = Subject.of(model, (3, 32, 32)), vouched(model, x, y)
    assert layers_before_head(subject) == ("7", "4")
    found = tail_inputs(subject, share, *fitted(subject, share))
    assert found is not None
    assert found.layers == ("4", "7")
    with torch.no_grad():
        true = model[:4](x).double()
    off = torch.cdist(true, found.inputs).amin(1) / true.norm(dim=1)
    assert float(off.max()) < 1e-4


@pytest.mark.parametrize("mode", [False, True])
def test_dropout_is_no_obstacle(mode):
    model, (x, _), y = deep_network().train(mode), drawn(4), labels(4)
    found = attack(model, vouched(model, x, y), 4)
    assert found.status is Status.UNIQUE, found.message
    check_no_false_proof(found, y)


@pytest.mark.parametrize("name", ["4.weight", "4.bias", "7.weight"])
def test_a_tail_that_sends_another_gradient_proves_nothing(name):
    """The head and the bias before it are as they were, so that only the simulation can tell."""
    model, (x, _), y = deep_network().eval(), drawn(4), labels(4)
    share = vouched(model, x, y)
    assert attack(model, share, 4).status is Status.UNIQUE
    other = share.map(lambda own, g: g * 1.001 if own == name else g)
    assert not attack(model, other, 4).proved


def test_labels_that_no_one_vouches_for_are_returned_and_not_proved():
    model, (x, _), y = network(), drawn(3), labels(3)
    found = sl.recover_batch(model, sl.capture(model, x, y), size=3, family=sl.OneHot())
    assert len(found.samples) == 3
    assert not found.proved
    nearest = torch.cdist(y.double(), torch.stack([s.label for s in found.samples]), p=1).amin(1)
    assert float(nearest.max()) < 1e-5


@pytest.mark.slow
def test_alexnet():
    torch.manual_seed(0)
    model = models.alexnet(17).eval()
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.interpolate(drawn(8)[0], size=(224, 224), mode="bilinear")
    y = -torch.rand(8, 17, generator=generator).log()
    y = y / y.sum(1, keepdim=True)
    subject = Subject.of(model, (3, 224, 224))
    found = recover_by_features(subject, vouched(model, x, y), Knowledge(samples=8))
    assert found is not None
    assert found.status is Status.UNIQUE, found.message
    check_no_false_proof(found, y)
