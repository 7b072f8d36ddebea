"""Networks that take other images for the same: none of their images is proved."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.results import Status
from softleak.core.subject import Subject
from softleak.matching import GaussNewton, GivenLabel
from softleak.matching.gauss_newton.certificate import changed_inputs
from softleak.matching.gauss_newton.method import differ, far_starts, why_not_smooth

CLASSES = 5


class Entering(nn.Module):
    """A smooth network behind a function of every entry of its input."""

    def __init__(self, enter, channels=1):
        super().__init__()
        self.enter = enter
        self.body = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 8, 3, 2, 1), nn.Tanh(),
            nn.Flatten(), nn.Linear(72, 12), nn.Tanh(), nn.Linear(12, CLASSES),
        )  # fmt: skip

    def forward(self, x):
        return self.body(self.enter(x))


class PatchSet(nn.Module):
    """Patches of three pixels that are averaged after a few layers, in whatever order they come."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(1, 24, 3, 3)
        self.body = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh())
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x):
        return self.head(self.body(torch.tanh(self.embed(x)).flatten(2).transpose(1, 2)).mean(1))


class PointSymmetric(nn.Module):
    """A network that sees an image and the same image upside down alike."""

    def __init__(self):
        super().__init__()
        self.inner = Entering(nn.Identity())
        self.head = nn.Linear(CLASSES, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(x) + self.inner(x.rot90(2, (2, 3)))))


def attacked(model, shape=(1, 6, 6), seed=0):
    torch.manual_seed(seed)
    x, y = torch.randn(shape), torch.randn(CLASSES).softmax(0)
    share = sl.capture(model.eval(), x, y)
    recovery = sl.recover_label(model, share)
    return x, sl.reconstruct(model, share, recovery, optimiser=GaussNewton(), restarts=2)


def built(make):
    torch.manual_seed(1)
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


@pytest.mark.parametrize(
    "make",
    [
        PatchSet,
        PointSymmetric,
        lambda: Entering(torch.square),
        lambda: Entering(lambda x: (x - 0.3).square()),
        lambda: Entering(lambda x: x * torch.exp(-x)),
        lambda: Entering(lambda x: torch.sin(2 * x)),
    ],
    ids=["patches", "upside down", "squares", "squares beside zero", "folded", "sines"],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_an_image_with_others_that_send_the_same_is_not_proved(make, seed):
    _, found = attacked(built(make), seed=seed)
    assert found.status is not Status.PROVED


def test_the_same_network_without_the_symmetry_is_proved():
    x, found = attacked(built(lambda: Entering(nn.Identity())))
    assert found.status is Status.PROVED, found.message
    assert float((found.input - x).abs().max()) < 1e-3


def test_a_batch_whose_samples_can_exchange_patches_is_not_proved():
    model = built(PatchSet).eval()
    torch.manual_seed(3)
    x, y = torch.randn(2, 1, 6, 6), torch.randn(2, CLASSES).softmax(1)
    share = sl.capture(model, x, y)
    label = GivenLabel(y.double())
    found = sl.reconstruct(model, share, label=label, optimiser=GaussNewton(), restarts=1)
    assert found.status is not Status.PROVED


def test_few_independent_numbers_prove_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 2), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 20)
    )
    with torch.no_grad():
        model[0].weight.mul_(3)
    x, y = torch.randn(1, 3, 6), torch.randn(20).softmax(0)
    share = sl.capture(model, x, y)
    recovery = sl.recover_label(model, share)
    entries = sum(share[name].numel() for name in share)
    assert entries > 2 * (18 + 20)
    found = sl.reconstruct(model, share, recovery, optimiser=GaussNewton(), restarts=2)
    assert found.status is not Status.PROVED


@pytest.mark.parametrize(
    ("enter", "name"),
    [
        (torch.frac, "frac"),
        (lambda x: torch.remainder(x, 4.0), "remainder"),
        (lambda x: torch.where(x > 1, 2 - x, x), "gt"),
        (lambda x: x + x.round(), "round"),
        (lambda x: x + x.long(), "whole numbers"),
        (torch.relu, "relu"),
    ],
)
def test_what_is_not_known_to_be_smooth_is_named(enter, name):
    assert name in roughness(Entering(enter))


def test_a_mask_that_does_not_depend_on_the_input_is_smooth():
    mask = torch.arange(36).view(1, 6, 6) > 17
    assert not roughness(Entering(lambda x: torch.where(mask, x, -x)))


def roughness(model):
    subject = Subject.of(built(lambda: model).eval(), (1, 6, 6))
    function = GaussNewton().model(subject, tuple(subject.parameters), (1, 1, 6, 6)).exact
    return why_not_smooth(function)


@pytest.mark.parametrize(
    "shape", [(1, 3, 12, 12), (2, 1, 6, 9), (1, 12), (1, 1, 15), (1, 2, 4, 6, 6)]
)
def test_look_alikes_have_the_entries_of_the_inputs_up_to_their_sign(shape):
    x = torch.randn(shape, dtype=torch.double)
    found = list(changed_inputs(x))
    for what, other in found:
        assert other.shape == x.shape, what
        assert torch.equal(other.abs().flatten().sort().values, x.abs().flatten().sort().values)
        assert not torch.equal(other, x), what
    assert len(found) > 5


def test_a_patch_of_any_size_is_exchanged_with_a_neighbour():
    x = torch.randn(1, 1, 12, 12, dtype=torch.double)
    for size in (1, 2, 3, 4, 5, 6):

        def described(image, size=size):
            tiles = image[0].unfold(1, size, size).unfold(2, size, size).flatten(0, 2)
            return sorted(tile.sum().item() for tile in tiles.flatten(1))

        whole = 12 // size * size
        crop = x[..., :whole, :whole]
        same = [
            what for what, other in changed_inputs(x)
            if described(other[..., :whole, :whole]) == pytest.approx(described(crop))
        ]  # fmt: skip
        assert "with two parts of it exchanged" in same, size


def test_solutions_differ_whatever_the_order_of_a_batch():
    error = torch.full((2, 1, 2, 2), 1e-6)
    x = torch.randn(2, 1, 2, 2, dtype=torch.double)
    assert not differ(x.flip(0), x, error)
    assert differ(x + 0.1, x, error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_value_in_another_period_is_looked_for_beyond_the_range_of_the_input(dtype):
    def day(x):
        return torch.cat([torch.sin(x / 4), torch.cos(x / 4)], 1)

    model = built(lambda: Entering(day, channels=2)).to(dtype).eval()
    torch.manual_seed(2)
    x, y = (12 + torch.rand(1, 6, 6)).to(dtype), torch.randn(CLASSES).softmax(0).to(dtype)
    share = sl.capture(model, x, y)
    found = sl.reconstruct(
        model, share, sl.recover_label(model, share), optimiser=GaussNewton(), restarts=2
    )
    assert found.status is not Status.PROVED


def test_starts_of_a_second_look_have_the_shape_and_are_far_from_the_inputs():
    x = torch.randn(2, 1, 6, 6, dtype=torch.double)
    starts = far_starts(x)
    assert len(starts) == 8
    assert all(one.shape == x.shape and float((one - x).std()) > 0.5 for one in starts)
