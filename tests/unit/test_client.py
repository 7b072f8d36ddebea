from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.audit.metrics import label_error
from softleak.core.errors import DataError, LabelError, ModelError, NonFinite
from softleak.core.forward import accepted_shapes
from softleak.paper import models


def reference(model, x, y):
    """The gradient by plain backward()."""
    model.zero_grad()
    nn.functional.cross_entropy(model(x[None]), y[None]).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_what_backward_gives(dtype):
    model = models.vgg().eval().to(dtype)
    x, y = torch.randn(3, 32, 32, dtype=dtype), torch.rand(10, dtype=dtype).softmax(0)
    share = sl.capture(model, x, y)
    for name, gradient in reference(model, x, y).items():
        torch.testing.assert_close(share[name], gradient)
    assert share.input_shape == (3, 32, 32)


def test_an_index_is_a_one_hot_label():
    model = models.lenet()
    x = torch.randn(3, 32, 32)
    by_index, by_label = sl.capture(model, x, 3), sl.capture(model, x, torch.eye(10)[3])
    for name, gradient in by_index.items():
        torch.testing.assert_close(gradient, by_label[name])


@pytest.mark.parametrize("training", [True, False])
def test_leaves_the_model_as_it_was(training):
    model = models.resnet18_cifar(classes=10).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sl.capture(model, torch.randn(3, 32, 32), 1)
    assert model.training is training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_batch_of_one_is_one_sample():
    model, x = models.lenet(), torch.randn(3, 32, 32)
    alone, batched = sl.capture(model, x, 1), sl.capture(model, x[None], 1)
    assert batched.input_shape == (3, 32, 32)
    for name, gradient in alone.items():
        torch.testing.assert_close(gradient, batched[name])


def test_frozen_parameters_are_not_sent():
    model = models.lenet()
    next(model.parameters()).requires_grad_(False)
    assert len(sl.capture(model, torch.randn(3, 32, 32), 1)) == len(list(model.parameters())) - 1


@pytest.mark.parametrize(
    ("label", "error"),
    [
        (10, LabelError),
        (-1, LabelError),
        (torch.ones(10), LabelError),
        (torch.tensor([-0.5, 1.5] + [0.0] * 8), LabelError),
        (torch.full((10,), float("nan")), NonFinite),
        (torch.ones(3) / 3, LabelError),
    ],
)
def test_bad_labels_are_named(label, error):
    with pytest.raises(error):
        sl.capture(models.lenet(), torch.randn(3, 32, 32), label)


@pytest.mark.parametrize("shape", [(2, 3, 32, 32), (3, 33), (5,)])
def test_wrong_inputs_are_named(shape):
    with pytest.raises(ModelError, match="one input of shape"):
        sl.capture(models.lenet(), torch.randn(shape), 1)


class Demanding(nn.Module):
    """A forward pass that raises what it likes."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.head, self.error = nn.Linear(8, 4), error

    def forward(self, x, *mask):
        if self.error is not None:
            raise self.error
        return self.head(x)


@pytest.mark.parametrize(
    ("error", "words"),
    [(AssertionError("expected 224"), "expected 224"), (AssertionError(), "AssertionError")],
    ids=["with-a-message", "without"],
)
def test_whatever_a_forward_pass_raises_is_told(error, words):
    with pytest.raises(ModelError, match=words):
        sl.capture(Demanding(error), torch.randn(8), 1)
    assert list(accepted_shapes(Demanding(error))) == []


def test_a_forward_pass_with_another_argument_is_told():
    class Masked(Demanding):
        def forward(self, x, mask):
            return self.head(x * mask)

    with pytest.raises(ModelError, match="mask"):
        sl.capture(Masked(), torch.randn(8), 1)
    assert list(accepted_shapes(Demanding())) == [(8,)]


def test_a_coarse_label_of_a_precise_model_sums_to_one():
    model = nn.Linear(8, 5).double()
    label = torch.rand(5).add(0.1)
    label = label / label.sum()
    x, exact = torch.randn(8).double(), label.double() / label.double().sum()
    share = sl.capture(model, x, label)
    assert float(share["bias"].sum().abs()) < 1e-15
    assert torch.equal(share["bias"], sl.capture(model, x, exact)["bias"])
    recovery = sl.recover_label(model, share)
    assert label_error(recovery, exact) <= recovery.error
    whole = torch.tensor([0, 0, 1, 0, 0])
    assert torch.equal(sl.capture(model, x, whole)["bias"], sl.capture(model, x, 2)["bias"])


def test_a_label_as_precise_as_the_model_is_taken_as_it_is():
    model, x = nn.Linear(8, 3), torch.randn(8)
    label = torch.tensor([0.3, 0.3, 0.4000001])
    share = sl.capture(model, x, label)
    for name, gradient in reference(model, x, label).items():
        assert torch.equal(share[name], gradient)


def test_what_is_no_input_is_named():
    with pytest.raises(DataError, match="the input as numbers, got str"):
        sl.capture(models.lenet(), "a cat", 1)


def test_whoever_tries_shapes_keeps_their_gradients():
    assert [torch.is_grad_enabled() for _ in accepted_shapes(nn.Linear(8, 2))] == [True]


@pytest.mark.parametrize("soft", [True, False])
def test_a_batch_sends_the_mean_of_its_samples(soft):
    model, generator = models.lenet().double(), torch.Generator().manual_seed(3)
    x = torch.randn(3, 3, 32, 32, generator=generator, dtype=torch.double)
    y = torch.rand(3, 10, generator=generator, dtype=torch.double).softmax(1)
    labels = y if soft else torch.tensor([0, 1, 0])  # which could be a one-hot label of 3 classes
    batch = sl.capture(model, x, labels)
    alone = [sl.capture(model, x[i], labels[i]) for i in range(3)]
    assert batch.input_shape == (3, 32, 32)
    for name, gradient in batch.items():
        mean = torch.stack([share[name] for share in alone]).mean(0)
        torch.testing.assert_close(gradient, mean, rtol=1e-9, atol=1e-12)


def test_integers_that_are_a_one_hot_label_of_one_sample():
    model = models.lenet(classes=3)
    x = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(0))
    sent, plain = sl.capture(model, x, torch.tensor([0, 1, 0])), sl.capture(model, x, 1)
    for name, gradient in plain.items():
        torch.testing.assert_close(sent[name], gradient)


def test_a_batch_needs_as_many_labels_as_inputs():
    with pytest.raises(LabelError, match="as many labels as inputs"):
        sl.capture(models.lenet(), torch.zeros(3, 3, 32, 32), torch.tensor([1, 2]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_soft_label_in_half_precision_is_taken(dtype):
    model = nn.Linear(6, 5).to(dtype)
    label = torch.full((5,), 0.2).to(dtype)
    assert float(label.double().sum()) != 1
    assert sl.capture(model, torch.rand(6).to(dtype), label)["bias"].shape == (5,)
