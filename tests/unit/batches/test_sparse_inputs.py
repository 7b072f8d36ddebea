"""Every input and label of a batch from a fully connected first layer, and no false proof."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from softleak.batches.sparse.attacks import recover_by_inputs
from softleak.core.knowledge import Knowledge
from softleak.core.results import BatchRecovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.paper import models

from .test_resimulate import drawn, vouched


def mlp(width: int = 100, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return models.mlp(3072, (width, width))


def attack(model: nn.Module, share: GradientShare, size: int | None = None) -> BatchRecovery:
    found = recover_by_inputs(Subject.of(model, (3, 32, 32)), share, Knowledge(samples=size))
    assert found is not None
    return found


def paired(found: BatchRecovery, x: Tensor) -> Tensor:
    """Which of the recovered samples is nearest to each true input."""
    assert found.inputs is not None
    return torch.cdist(x.double().flatten(1), found.inputs.flatten(1)).argmin(1)


def errors(found: BatchRecovery, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The L1 errors of the labels (B,), and the bounds that were said of them."""
    order = paired(found, x)
    labels = torch.stack([s.label for s in found.samples if s.label is not None])[order]
    bounds = torch.tensor([s.error for s in found.samples])[order]
    return (labels - y.double()).abs().sum(1), bounds


def check_no_false_proof(found: BatchRecovery, x: Tensor, y: Tensor) -> None:
    """Whatever is called UNIQUE is the label of one of the samples."""
    for sample in found.proved:
        assert sample.label is not None
        assert float((sample.label - y.double()).abs().sum(1).min()) <= sample.error < 1e-3


@pytest.mark.parametrize("size", [1, 2, 6, 10])
def test_every_sample_of_a_batch_is_proved(size):
    model = mlp()
    x, y = drawn(size)
    found = attack(model, vouched(model, x, y), size)
    assert found.status is Status.UNIQUE, found.message
    l1, bounds = errors(found, x, y)
    assert (l1 <= bounds).all()
    assert bounds.max() < 1e-5
    assert found.inputs is not None
    off = (x.double() - found.inputs[paired(found, x)]).abs().max()
    assert off < 8 * found.input_error < 1e-4
    features = torch.stack([s.feature for s in found.samples if s.feature is not None])
    with torch.no_grad():
        expected = model.features(found.inputs.float().flatten(1))
    torch.testing.assert_close(features.float(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "size"), [(200, 20), (200, 25), (400, 32)])
def test_larger_batches(width, size):
    for seed in range(3):
        model = mlp(width, seed)
        x, y = drawn(size, seed)
        found = attack(model, vouched(model, x, y), size)
        assert found.status is Status.UNIQUE, found.message
        assert errors(found, x, y)[0].max() < 1e-5


def test_one_hot_labels_of_one_class():
    model = mlp()
    x, _ = drawn(6)
    y = torch.eye(10)[torch.full((6,), 3)]
    found = attack(model, vouched(model, x, y), 6)
    assert found.status is Status.UNIQUE, found.message
    assert errors(found, x, y)[0].max() < 1e-5


def test_a_batchnorm_between_layer_and_relu_and_a_relu_in_place():
    torch.manual_seed(0)
    layers = (nn.Flatten(), nn.Linear(3072, 120), nn.BatchNorm1d(120), nn.ReLU(inplace=True))
    model = nn.Sequential(*layers, nn.Linear(120, 10))
    x, y = drawn(5)
    with torch.no_grad():
        model(drawn(64, 3)[0])
    model.eval()
    found = attack(model, vouched(model, x, y), 5)
    assert found.status is Status.UNIQUE, found.message
    assert errors(found, x, y)[0].max() < 1e-4


def test_a_size_that_was_not_said_proves_inputs_but_no_interior_label():
    model = mlp()
    x, y = drawn(5)
    found = attack(model, vouched(model, x, y))
    assert found.status is Status.AMBIGUOUS
    assert found.size == 5
    assert not found.proved
    assert "size" in found.message
    assert errors(found, x, y)[0].max() < 1e-5  # no input is twice in it, so they are right


def test_one_hot_labels_prove_their_own_weights():
    model = mlp()
    x, _ = drawn(5)
    y = torch.eye(10)[[1, 4, 4, 0, 7]]
    found = attack(model, vouched(model, x, y))
    assert found.status is Status.UNIQUE, found.message
    check_no_false_proof(found, x, y)


@pytest.mark.parametrize("said", [None, 4, 5, 7])
def test_a_duplicate_is_never_proved_to_be_one_sample(said):
    model = mlp()
    x, y = drawn(5)
    x[4] = x[3]
    found = attack(model, vouched(model, x, y), said)
    if said == 4:  # four samples with other labels send the very same gradient
        assert found.size == 4
    else:
        assert found.status is not Status.UNIQUE
        assert not found.proved


@pytest.mark.parametrize("said", [1, 4, 6, 12])
def test_a_wrong_size_proves_nothing(said):
    model = mlp()
    x, y = drawn(5)
    found = attack(model, vouched(model, x, y), said)
    assert found.status is not Status.UNIQUE
    assert not found.proved


@pytest.mark.parametrize("level", [1e-7, 1e-5, 1e-3])
def test_noise_makes_no_false_proof(level):
    model = mlp()
    x, y = drawn(5)
    generator = torch.Generator().manual_seed(0)
    share = vouched(model, x, y)
    noisy = GradientShare(
        {n: g + level * torch.randn(g.shape, generator=generator) for n, g in share.items()},
        scale="known",
    )
    found = recover_by_inputs(Subject.of(model, (3, 32, 32)), noisy, Knowledge(samples=5))
    if found is not None:
        check_no_false_proof(found, x, y)


def test_clipping_proves_inputs_only():
    model = mlp()
    x, y = drawn(5)
    found = attack(model, vouched(model, x, y).scaled(0.3), 5)
    assert not found.proved
    assert found.inputs is not None
    assert (x.double() - found.inputs[paired(found, x)]).abs().max() < 1e-4


def test_a_second_local_step_makes_no_false_proof():
    for rate in (1e-4, 1e-2):
        model, other = mlp(), mlp()
        x, y = drawn(4)
        first = vouched(model, x, y)
        with torch.no_grad():
            for name, parameter in other.named_parameters():
                parameter -= rate * first[name]
        second = vouched(other, x, y)
        both = {name: (g + second[name]) / 2 for name, g in first.items()}
        found = recover_by_inputs(
            Subject.of(model, (3, 32, 32)), GradientShare(both, scale="known"), Knowledge(samples=4)
        )
        if found is not None:
            check_no_false_proof(found, x, y)


def test_too_many_samples_for_the_width_are_not_found_and_not_invented():
    model = mlp(width=24)
    x, y = drawn(20)
    found = attack(model, vouched(model, x, y), 20)
    assert not found.proved


def test_models_of_another_kind_are_left_to_other_attacks():
    x, y = drawn(2)
    tanh = models.mlp(3072, (64,), activation=nn.Tanh)
    lenet = models.trained_lenet()
    for model in (tanh, lenet):
        subject = Subject.of(model, (3, 32, 32))
        assert recover_by_inputs(subject, vouched(model, x, y), Knowledge(samples=2)) is None
    model = mlp()
    share = vouched(model, x, y).without("features.0.weight")
    assert recover_by_inputs(Subject.of(model, (3, 32, 32)), share, Knowledge(samples=2)) is None


@pytest.mark.parametrize("kind", ["one-hot", "smoothed"])
def test_a_network_without_biases_leaves_one_scalar_for_each_sample(kind):
    torch.manual_seed(0)
    model = models.mlp(3072, (150, 100), bias=False)
    x, _ = drawn(5)
    y = torch.eye(10)[[3, 3, 8, 0, 5]]
    y = y if kind == "one-hot" else 0.9 * y + 0.01
    found = attack(model, vouched(model, x, y), 5)
    assert found.status is Status.UNIQUE, found.message
    check_no_false_proof(found, x, y)
    assert (x.double() - found.inputs[paired(found, x)]).abs().max() < 8 * found.input_error
    for said in (None, 4, 6):
        assert not attack(model, vouched(model, x, y), said).proved


def test_without_biases_a_label_of_no_family_is_not_invented():
    torch.manual_seed(0)
    model = models.mlp(3072, (150, 100), bias=False)
    x, y = drawn(5)
    found = attack(model, vouched(model, x, y), 5)
    assert not found.proved
    assert "no layer has a bias" in found.message


def test_a_withheld_bias_gradient_leaves_the_scales_open():
    model = mlp()
    x, y = drawn(4)
    found = attack(model, vouched(model, x, y).without("features.0.bias"), 4)
    assert found.status is Status.AMBIGUOUS
    assert "up to a factor" in found.message
