from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import softleak as sl
from softleak.core.errors import LabelError
from softleak.core.subject import Subject
from softleak.labels.composition import BatchReader
from softleak.paper import data, models

SHAPE = (3, 32, 32)


def mlp(bias: bool, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 64), activation(), nn.Linear(64, 10, bias=bias)
    )


@pytest.fixture(scope="module")
def pictures(images):
    x = torch.stack([images.pixels(index) for index in range(len(images))])
    return data.CIFAR10_NORM.apply(x), images.labels


def step(model: nn.Module, x, y, lr: float | None = None, steps: int = 1) -> sl.GradientShare:
    """The gradient of a batch; with a learning rate, from the difference of float32 weights."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    rate = 0.1 if lr is None else lr
    after = dict(before)
    for _ in range(steps):
        parts = {name: w.clone().requires_grad_() for name, w in after.items()}
        loss = F.cross_entropy(torch.func.functional_call(model, parts, (x,)), y)
        found = torch.autograd.grad(loss, list(parts.values()))
        if lr is None:
            return sl.GradientShare(dict(zip(parts, found, strict=True)), SHAPE)
        after = {n: (w - rate * g).detach() for (n, w), g in zip(parts.items(), found, strict=True)}
    return sl.GradientShare.from_update(before, after, lr=rate)


def reader(model: nn.Module) -> BatchReader:
    return BatchReader.of(Subject.of(model, SHAPE))


def chosen(pictures, samples: int, seed: int):
    x, y = pictures
    picked = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:samples]
    return x[picked], y[picked]


CASES = {
    "lenet, trained": models.trained_lenet,
    "lenet": models.lenet,
    "mlp with a bias": lambda: mlp(True),
    "mlp without": lambda: mlp(False),
    "resnet20": lambda: models.resnet20().eval(),
}


@pytest.mark.parametrize("lr", [None, 0.1])
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_what_is_called_present_is_and_no_more_samples_are_claimed_than_there_are(
    make, lr, pictures
):
    model = make()
    read = reader(model)
    for samples in (2, 4, 16):
        for seed in range(3):
            x, y = chosen(pictures, samples, seed)
            found = read.read(step(model, x, y, lr), samples)
            assert set(found.present) <= set(found.raised) <= set(y.tolist())
            assert 1 <= found.gradients <= samples
            assert int(found.counts.sum()) == samples
            if samples == 2:
                assert set(found.raised) == set(y.tolist())


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_counts_are_mostly_right(make, pictures):
    model, right, total = make(), 0, 0
    read = reader(model)
    for seed in range(6):
        x, y = chosen(pictures, 8, seed)
        true = torch.bincount(y, minlength=10)
        found = read.read(step(model, x, y), 8)
        right += int(torch.minimum(found.counts, true).sum())
        total += 8
    assert right / total >= 0.8


@pytest.mark.parametrize("bias", [True, False])
def test_local_steps_prove_no_class_that_is_not_there(bias, pictures):
    model = mlp(bias)
    x, y = chosen(pictures, 4, 0)
    found = reader(model).read(step(model, x, y, 0.05, steps=5))
    assert set(found.present) <= set(y.tolist())
    assert found.counts is None


def test_features_of_both_signs_prove_nothing_without_a_bias(pictures):
    model = mlp(False, nn.Tanh)
    x, y = chosen(pictures, 3, 0)
    found = reader(model).read(step(model, x, y), 3)
    assert found.present == ()
    assert "may be negative" in found.message
    assert found.gradients == 3


def test_why_no_class_is_proved(pictures):
    model = mlp(True, nn.Tanh)
    share = step(model, *chosen(pictures, 3, 0))
    found = reader(model).read(share.without("3.bias"))
    assert "the gradient of the head's bias is missing and its features may be neg" in found.message
    blind = BatchReader.of(Subject.of(Unknown(), head=sl.Head.of(Unknown(), "head")))
    found = blind.read(sl.GradientShare({"head.weight": torch.tensor([[1.0] * 4, [-1.0] * 4])}))
    assert "the head has no bias and its features could not be looked at" in found.message


class Unknown(nn.Module):
    """Takes inputs that no layer of it tells the shape of."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2, bias=False)

    def forward(self, x):
        return self.head(x.reshape(len(x), 2, 4).sum(1))


def test_noise_proves_nothing(pictures):
    model = mlp(True)
    noisy = step(model, *chosen(pictures, 3, 0)).map(lambda _, g: g + 1e-3 * torch.randn_like(g))
    found = reader(model).read(noisy, 3)
    assert (found.gradients, found.present, found.counts) == (1, (), None)


def test_a_batch_has_a_sample(pictures):
    model = mlp(True)
    with pytest.raises(LabelError, match="one sample"):
        reader(model).read(step(model, *chosen(pictures, 1, 0)), 0)
