"""Several steps of the head alone: the label is exact, and doubted where nothing bears it out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import softleak as sl
from softleak.core.client import SgdSteps, mean_gradient
from softleak.core.factors import factor
from softleak.core.families import SmoothedMixed
from softleak.core.results import Candidate
from softleak.core.share import UNKNOWN, LocalTraining, read_settings
from softleak.labels.curve import PseudoLabels
from softleak.labels.local.head_alone import RecursionCurve
from softleak.labels.local.recover import best_fitting
from softleak.paper import data, models


@pytest.fixture(scope="module")
def probing():
    """A trained network of which only the head learns."""
    model = models.trained_lenet()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.classifier.weight.requires_grad_(True)
    return model


def sample(kind, seed):
    return next(iter(data.samples(data.embedded(), kind, 1, seed, data.CIFAR10_NORM)))


def recovered(model, share, **settings):
    return sl.recover_label(model, share, evidence=False, input_shape=(3, 32, 32), **settings)


def test_sgd_is_linear_in_its_gradients():
    recipe = SgdSteps(4, 0.1, 0.9, 0.2, 0.01)
    weight, slopes = torch.randn(3).double(), torch.randn(4, 3).double()
    parameter = torch.nn.Parameter(weight.clone())
    rules = {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.01}
    optimiser = torch.optim.SGD([parameter], **rules)
    for slope in slopes:
        parameter.grad = slope.clone()
        optimiser.step()
    moved = (1 - recipe.kept[-1]) * weight + torch.tensor(recipe.weights).double() @ slopes
    torch.testing.assert_close(weight - parameter.detach(), moved)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
def test_steps_in_place_are_the_same_steps(momentum, nesterov):
    recipe = SgdSteps(4, 0.1, momentum, 0.0 if nesterov else 0.2, 0.01, nesterov)
    moved, memory = torch.zeros(3).double(), None
    there, held = torch.zeros(3).double(), None
    for slope in torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double():
        moved, memory = recipe.step(moved, memory, slope)
        held = recipe.step_in_place(there, held, slope.clone())
        torch.testing.assert_close(there, moved)


@pytest.mark.parametrize("settings", ["lr=0.02,steps=4", "lr=0.01,steps=3,momentum=0.9"])
@pytest.mark.parametrize("bias_trained", [False, True])
def test_the_derivative_by_the_label_is_that_of_the_recursion(probing, settings, bias_trained):
    taken, client = sample(data.Mixup(), 5), sl.Client.parse(settings + ",weight_decay=0.01")
    subject, recipe = sl.Subject.of(probing, (3, 32, 32)), SgdSteps.of(client.training)
    mean = mean_gradient(subject, client.share(probing, taken.x, taken.y), recipe)
    factors = factor(subject.head, [mean, mean])
    pseudo = PseudoLabels.of(subject.head, factors)
    curve = RecursionCurve(pseudo, factors.sigma.square(), recipe, bias_trained)
    t, y = torch.tensor([0.4, 0.7]).double(), torch.stack([taken.y, taken.y.flip(0)])
    run = curve.run(t, y)
    step = 1e-6 * torch.eye(10, dtype=torch.double)
    moved = [(curve.run(t, y + one).mean - curve.run(t, y - one).mean) / 2e-6 for one in step]
    torch.testing.assert_close(run.slope, torch.stack(moved, -1), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize(
    "settings", ["lr=0.01,steps=5", "lr=0.003,steps=3,momentum=0.9,weight_decay=5e-4,nesterov=true"]
)
def test_the_label_is_exact_and_proved(probing, settings):
    taken = sample(data.Smoothing(), 3)
    share = sl.Client.parse(settings).share(probing, taken.x, taken.y)
    # A rate that nobody said changes would move the label by one or two thousandths.
    found = recovered(probing, share, tolerance=5e-3)
    assert found.status is sl.Status.UNIQUE
    assert float((found.label - taken.y).abs().sum()) <= min(found.error, 1e-5)


def test_many_updates_at_once_are_each_as_alone(biased):
    y = torch.tensor([0.05, 0.05, 0.75, 0.05, 0.05, 0.05])
    clients = [sl.Client(lr=0.05, steps=n) for n in (3, 2, 3)]
    shares = [one.share(biased, torch.randn(12), y) for one in clients]
    together = sl.recover_labels(biased, shares, input_shape=(12,))
    for share, found in zip(shares, together, strict=True):
        alone = sl.recover_label(biased, share, input_shape=(12,))
        assert found.status is alone.status
        torch.testing.assert_close(found.label, alone.label)


def test_of_a_continuum_the_label_that_fits_best_is_named():
    labels = torch.tensor([[0.9, 0.05, 0.05], [0.8, 0.1, 0.1], [0.7, 0.15, 0.15]]).double()
    wide = Candidate(0.4, 0.3, 0.5, 0.2, True, labels[0], labels, 0.01)
    other = Candidate(0.9, 0.9, 0.9, 0.7, True, labels[2], labels[2:], 0.02)
    middle = sl.Recovery(
        sl.Status.AMBIGUOUS, "", label=labels[1], feature=torch.ones(2), scalar=0.5, error=0.3,
        feature_error=0.1, candidates=(other, wide),
    )  # fmt: skip
    found = best_fitting(middle, SmoothedMixed(2))
    torch.testing.assert_close(found.label, labels[0])
    torch.testing.assert_close(found.feature, torch.full((2,), 0.5 / 0.4))
    assert found.error == pytest.approx(0.4 + 0.02)
    assert found.feature_error == pytest.approx(0.25)
    # What another layer or a factor decides stays as it is, and so does what is proved.
    for same in (replace(middle, scale=0.5), replace(middle, status=sl.Status.UNIQUE)):
        assert best_fitting(same, SmoothedMixed(2)) is same


def test_a_candidate_that_fits_because_rounding_could_do_anything_is_not_named():
    labels = torch.tensor([[0.9, 0.05, 0.05], [0.1, 0.8, 0.1]]).double()
    sharp = Candidate(0.4, 0.3, 0.5, 0.2, True, labels[0], labels[:1], 1e-4)
    vague = Candidate(0.01, 0.01, 0.02, 1e-9, True, labels[1], labels[1:], 50.0)
    several = sl.Recovery(
        sl.Status.AMBIGUOUS, "", label=labels[1], feature=torch.ones(2), scalar=0.01, error=2.0,
        feature_error=0.1, candidates=(vague, sharp),
    )  # fmt: skip
    found = best_fitting(several, SmoothedMixed(2))
    torch.testing.assert_close(found.label, labels[0])
    assert found.error >= float((labels[0] - labels[1]).abs().sum())


def test_one_step_is_undone_exactly():
    model = models.trained_lenet()
    taken = sample(data.Mixup(), 4)
    client = sl.Client(lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True)
    share = client.share(model.double(), taken.x, taken.y)
    subject = sl.Subject.of(model, (3, 32, 32))
    mean = mean_gradient(subject, share, SgdSteps.of(client.training))
    for name, gradient in sl.capture(model, taken.x, taken.y).items():
        torch.testing.assert_close(mean[name], gradient, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("true", "said", "cause"),
    [
        ("lr=0.01,steps=2", "lr=0.01", "steps=2 instead of 1"),
        ("lr=0.01,weight_decay=0.01", "lr=0.01", "weight decay of 0.01"),
        ("lr=0.001,optimiser=adam", "lr=0.001", "Adam"),
        ("lr=0.004", "lr=0.01", "one step times 0.4"),
    ],
)
def test_an_undeclared_cause_is_named(probing, true, said, cause):
    taken = sample(data.Smoothing(), 3)
    share = sl.Client.parse(true).share(probing, taken.x, taken.y)
    told = replace(share, scale=None, made_by=LocalTraining(**read_settings(said)))
    found = recovered(probing, told)
    assert cause in found.message
    if found.status is sl.Status.UNIQUE:
        assert float((found.label - taken.y).abs().sum()) <= found.error


def test_several_samples_are_not_one(probing):
    x = torch.stack([sample(data.Hard(), seed).x for seed in (1, 2)])
    share = sl.Client(lr=0.01, steps=2).share(probing, x, torch.tensor([3, 5]))
    found = recovered(probing, replace(share, scale=None))
    assert found.label is None
    assert "several samples" in found.message


@pytest.mark.parametrize("settings", ["lr=?,steps=3", "lr=0.001,steps=2,optimiser=adam"])
def test_what_is_not_attempted_is_said(probing, settings):
    taken = sample(data.Hard(), 1)
    share = sl.Client(lr=0.01, steps=3).share(probing, taken.x, taken.y)
    found = recovered(probing, replace(share, made_by=LocalTraining(**read_settings(settings))))
    assert found.status is sl.Status.AMBIGUOUS
    assert found.label is None
    assert "not attempted" in found.message


@pytest.fixture(scope="module")
def biased():
    """A network whose head has a bias; the body is frozen."""
    torch.manual_seed(0)
    body = torch.nn.Linear(12, 20).requires_grad_(False)
    return torch.nn.Sequential(body, torch.nn.Tanh(), torch.nn.Linear(20, 6))


def test_the_bias_of_the_head_gives_any_label(biased):
    x, y = torch.randn(12), torch.rand(6).double().softmax(0)
    client = sl.Client(lr=0.05, steps=4, momentum=0.9, weight_decay=1e-3)
    share = client.share(biased, x, y)
    found = sl.recover_label(biased, share, input_shape=(12,))
    assert found.status is sl.Status.UNIQUE
    assert float((found.label - y).abs().sum()) <= found.error
    # Nobody vouches for the steps, and an arbitrary label does not bear them out.
    doubted = sl.recover_label(biased, replace(share, scale=None), input_shape=(12,))
    assert doubted.status is sl.Status.AMBIGUOUS


@pytest.mark.parametrize("said", ["lr=0.05", "lr=0.05,steps=3", "lr=0.04,steps=4"])
def test_a_client_wrongly_said_proves_nothing(biased, said):
    y = torch.tensor([0.05, 0.05, 0.75, 0.05, 0.05, 0.05])
    share = sl.Client(lr=0.05, steps=4).share(biased, torch.randn(12), y)
    told = replace(share, scale=None, made_by=LocalTraining(**read_settings(said)))
    found = sl.recover_label(biased, told, input_shape=(12,))
    assert found.status is not sl.Status.UNIQUE
    if said == "lr=0.05,steps=3":
        assert "steps=4 instead of 3" in found.message


def test_unknown_steps_are_found(biased):
    y = torch.tensor([0.05, 0.05, 0.75, 0.05, 0.05, 0.05])
    share = sl.Client(lr=0.05, steps=4).share(biased, torch.randn(12), y)
    told = replace(share, scale=None, made_by=LocalTraining(lr=0.05, steps=UNKNOWN))
    found = sl.recover_label(biased, told, input_shape=(12,))
    assert "steps=4 fits" in found.message
    assert float((found.label - y).abs().sum()) <= 1e-3
