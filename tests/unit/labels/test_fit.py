"""What the numbers of an update say of loss, weights, sign, scale, noise and compression."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import softleak as sl
from softleak.core.fit import Bearing, Explanation, Fit, Topic
from softleak.core.knowledge import Knowledge
from softleak.core.subject import Subject
from softleak.labels.fit import examine, grid_step, noise_is_absent
from softleak.labels.residual import LossReading

SHAPE, OUTPUTS, CLASS = (3, 8, 8), 14, 4
BIASED, PLAIN = "biased", "plain"


def network(kind: str = BIASED) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, OUTPUTS, bias=kind == BIASED),
    ).eval()  # fmt: skip


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def focal(z: Tensor, k: Tensor) -> Tensor:
    log_p = F.log_softmax(z, -1).gather(-1, k[:, None])
    return (-((1 - log_p.exp()) ** 2) * log_p).mean()


TAGS = F.one_hot(torch.tensor([2, 5, 9]), OUTPUTS).sum(0, keepdim=True).float()
WHICH = torch.tensor([CLASS])
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "ce": lambda z: F.cross_entropy(z, WHICH),
    "smoothed": lambda z: F.cross_entropy(z, WHICH, label_smoothing=0.1),
    "bce": lambda z: F.binary_cross_entropy_with_logits(z, TAGS),
    "bce sum": lambda z: F.binary_cross_entropy_with_logits(z, TAGS, reduction="sum"),
    "mse": lambda z: F.mse_loss(z, F.one_hot(WHICH, OUTPUTS).float()),
    "mse of any target": lambda z: F.mse_loss(z, torch.linspace(-1, 2, OUTPUTS)[None]),
    "margin": lambda z: F.multi_margin_loss(z, WHICH),
    "focal": lambda z: focal(z, WHICH),
    "temperature": lambda z: F.cross_entropy(z / 3, WHICH),
}


def image(count: int = 1) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(7))


def asked(
    model: nn.Module, sent: dict[str, Tensor], scale: str | None = "known", **said
) -> tuple[Fit, LossReading | None]:
    share = sl.GradientShare(sent, SHAPE, scale=scale)
    found = examine(Subject.of(model, SHAPE), share, Knowledge(**said))
    return found.fit, found.reading


def of_loss(name: str, kind: str = BIASED) -> tuple[Fit, LossReading | None]:
    model = network(kind)
    return asked(model, gradients(model, LOSSES[name](model(image()))))


@pytest.mark.parametrize("kind", [BIASED, PLAIN])
@pytest.mark.parametrize("name", ["ce", "smoothed"])
def test_a_cross_entropy_bears_everything_out(name, kind):
    fit, reading = of_loss(name, kind)
    assert fit.holds
    assert reading.loss.name == "ce"
    assert reading.factor == pytest.approx(1)
    assert int(reading.label.argmax()) == CLASS


@pytest.mark.parametrize("kind", [BIASED, PLAIN])
@pytest.mark.parametrize("name", ["bce", "bce sum"])
def test_several_labels_are_read_under_their_own_loss(name, kind):
    fit, reading = of_loss(name, kind)
    assert fit[Topic.LOSS].explanation is Explanation.BCE
    assert reading.label.tolist() == pytest.approx(TAGS[0].tolist(), abs=1e-5)
    assert reading.factor == pytest.approx(1)


@pytest.mark.parametrize("kind", [BIASED, PLAIN])
def test_a_squared_error_of_a_class_is_read_as_one(kind):
    fit, reading = of_loss("mse", kind)
    assert fit[Topic.LOSS].explanation is Explanation.MSE
    assert int(reading.label.argmax()) == CLASS


@pytest.mark.parametrize(
    ("name", "explanation"),
    [
        ("mse of any target", Explanation.OTHER_LOSS),
        ("margin", Explanation.MARGIN),
    ],
)
def test_a_loss_that_is_none_of_these_contradicts_the_cross_entropy(name, explanation):
    fit, reading = of_loss(name)
    assert reading is None
    assert fit[Topic.LOSS].bearing is Bearing.CONTRADICTED
    assert fit[Topic.LOSS].explanation is explanation


def test_a_temperature_is_named():
    fit, _ = of_loss("temperature")
    assert fit[Topic.LOSS].explanation is Explanation.TEMPERATURE
    assert fit[Topic.LOSS].number == pytest.approx(3, rel=1e-3)


@pytest.mark.parametrize("name", ["ce", "bce"])
def test_swapped_files_are_named(name):
    model = network()
    sent = gradients(model, LOSSES[name](model(image())))
    fit, reading = asked(model, {n: -g for n, g in sent.items()})
    assert fit[Topic.SIGN].explanation is Explanation.SWAPPED
    assert fit[Topic.SIGN].bearing is Bearing.CONTRADICTED
    assert reading.factor < 0


def test_a_factor_contradicts_only_what_was_stated():
    model = network()
    sent = {n: 3.7 * g for n, g in gradients(model, LOSSES["ce"](model(image()))).items()}
    stated, _ = asked(model, sent)
    assert stated[Topic.SCALE].bearing is Bearing.CONTRADICTED
    assert stated[Topic.SCALE].number == pytest.approx(3.7, rel=1e-4)
    assert asked(model, sent, "unknown")[0].holds


@pytest.mark.parametrize(("kind", "far"), [(BIASED, 0.01), (BIASED, 0.3), (PLAIN, 0.01)])
def test_other_weights_are_named(kind, far):
    model, other = network(kind), network(kind)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(far * torch.randn(weight.shape, generator=generator))
    sent = gradients(other, LOSSES["ce"](other(image())))
    fit, reading = asked(model, sent)
    assert reading is None
    assert fit[Topic.WEIGHTS].bearing is Bearing.CONTRADICTED


@pytest.mark.parametrize("count", [3, 9])
def test_a_batch_of_another_loss_is_no_cross_entropy(count):
    model = network()
    tags = (torch.rand(count, OUTPUTS, generator=torch.Generator().manual_seed(3)) < 0.3).float()
    loss = F.binary_cross_entropy_with_logits(model(image(count)), tags)
    fit, _ = asked(model, gradients(model, loss))
    assert fit[Topic.LOSS].bearing is Bearing.CONTRADICTED


@pytest.mark.parametrize("count", [2, 9, 40])
def test_a_batch_of_the_cross_entropy_contradicts_nothing(count):
    model = network()
    classes = torch.arange(count) % OUTPUTS
    fit, _ = asked(model, gradients(model, F.cross_entropy(model(image(count)), classes)), None)
    assert fit.holds


def test_noise_is_called_noise_only_where_it_is_alike_everywhere():
    model, generator = network(), torch.Generator().manual_seed(5)

    def noisy(name: str) -> Fit:
        sent = gradients(model, LOSSES[name](model(image())))
        return asked(
            model,
            {n: g + 1e-3 * torch.randn(g.shape, generator=generator) for n, g in sent.items()},
        )[0]

    plain = noisy("ce")
    assert plain.holds
    assert plain[Topic.NOISE].explanation is Explanation.MEASURED
    assert plain[Topic.NOISE].number == pytest.approx(1e-3, rel=0.2)
    assert not noisy("bce").holds


def test_what_compression_left_is_named():
    model = network()
    sent = gradients(model, LOSSES["ce"](model(image())))
    pruned = {n: torch.where(g.abs() >= g.abs().quantile(0.8), g, 0.0) for n, g in sent.items()}
    assert asked(model, pruned)[0][Topic.COMPRESSION].explanation is Explanation.PRUNED
    steps = {n: float(g.abs().max()) / 127 for n, g in sent.items()}
    rounded = {n: (g / steps[n]).round() * steps[n] for n, g in sent.items()}
    fit, _ = asked(model, rounded)
    assert fit[Topic.COMPRESSION].explanation is Explanation.GRID
    assert fit[Topic.COMPRESSION].number == pytest.approx(steps["6.weight"], rel=1e-3)
    signs = {n: g.sign() for n, g in sent.items()}
    assert asked(model, signs)[0][Topic.COMPRESSION].explanation is Explanation.SIGNS


def test_a_grid_is_no_accident():
    generator = torch.Generator().manual_seed(0)
    assert grid_step(torch.randn(64, 64, generator=generator)) is None
    assert grid_step(torch.randn(64, 64, generator=generator).bfloat16().double()) is None
    low, step = -0.3, 0.0123
    levels = torch.randint(0, 255, (64, 64), generator=generator)
    assert grid_step(low + step * levels.double()) == pytest.approx(step)


@pytest.mark.parametrize("noise", [1e-4, 1e-2, 1.0])
def test_declared_noise_that_is_there_is_not_called_absent(noise):
    model, generator = network(), torch.Generator().manual_seed(0)
    sent = gradients(model, LOSSES["ce"](model(image())))
    clean = sl.GradientShare(sent, SHAPE)
    assert noise_is_absent(clean, noise)
    noisy = clean.map(lambda _, g: g + noise * torch.randn(g.shape, generator=generator))
    assert not noise_is_absent(noisy, noise)
    assert noise_is_absent(noisy, 100 * noise)


def test_every_hypothesis_has_a_sentence():
    fits = [of_loss(name)[0] for name in LOSSES]
    said = {one.sentence for fit in fits for one in fit.hypotheses}
    assert all(one.endswith(".") and "{" not in one for one in said)
    assert len(fits[0].hypotheses) == len(Topic)


def test_a_model_that_was_copied_has_the_same_fit():
    model = network()
    sent = gradients(model, LOSSES["bce"](model(image())))
    assert asked(model, sent)[0] == asked(copy.deepcopy(model), sent)[0]
    assert math.isfinite(asked(model, sent)[0][Topic.LOSS].number)
