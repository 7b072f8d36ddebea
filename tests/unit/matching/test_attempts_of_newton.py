"""The attempts of Gauss–Newton: where each begins, and which of them are led on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import softleak as sl
from softleak.matching import GaussNewton, Image, Noise
from softleak.matching.gauss_newton.descent import DampedDescent


class Tried(NamedTuple):
    """One attempt: where it began and ended, its first damping, and whether it may be led on."""

    start: Tensor
    end: Tensor
    damping: float
    led: bool


@dataclass(frozen=True)
class Recorded(GaussNewton):
    """Gauss–Newton that keeps a list of its attempts."""

    tried: list[Tried] = field(default_factory=list)

    def solve(self, subject, share, known, start, stopping=None):
        found = super().solve(subject, share, known, start, stopping)
        led = self.escape is not None
        self.tried.append(Tried(start, found.inputs, self.descent.damping.first, led))
        return found


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.SiLU(), nn.Flatten(), nn.Linear(96, 4)
    ).eval()


@pytest.fixture(scope="module")
def truth():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1, 4, 4, generator=generator)


def attempts(model, share, start, restarts):
    method = Recorded(descent=DampedDescent(steps=9), memory=1 << 26)
    label = sl.matching.GivenLabel(torch.eye(4)[0])
    sl.reconstruct(model, share, optimiser=method, label=label, start=start, restarts=restarts)
    return method.tried


@pytest.fixture(scope="module")
def unexplained(model, truth):
    """A share that no image explains."""
    generator = torch.Generator().manual_seed(2)
    share = sl.capture(model, truth, torch.eye(4)[0])
    return share.map(lambda _, g: g + torch.randn(g.shape, generator=generator))


def test_every_attempt_of_a_near_start_begins_there(model, unexplained, truth):
    tried = attempts(model, unexplained, Image(truth + 0.1), restarts=2)
    assert len(tried) == 4
    for one in tried[:3]:
        assert torch.equal(one.start, (truth + 0.1)[None].double())
    brisk, cautious = tried[0].damping, tried[1].damping
    assert cautious > brisk


def test_the_first_of_several_attempts_is_led_on_last(model, unexplained):
    tried = attempts(model, unexplained, Noise(), restarts=2)
    assert [one.led for one in tried] == [False, True, True, True]
    assert torch.equal(tried[-1].start, tried[0].end)
    assert tried[-1].damping == tried[0].damping


def test_the_third_attempt_from_noise_begins_at_a_flat_colour(model, truth):
    generator = torch.Generator().manual_seed(2)
    bright = sl.capture(model, truth + 2, torch.eye(4)[0])
    bright = bright.map(lambda _, g: g + 0.05 * torch.randn(g.shape, generator=generator))
    tried = attempts(model, bright, Noise(), restarts=3)
    for attempt in (0, 1, 3):
        noise = 0.05 * Noise().draw(tuple(truth.shape), attempt).double()
        assert torch.equal(tried[attempt].start[0], noise)
    flat = tried[2].start
    assert flat.min() == flat.max()
    assert flat.min() > 0


def test_a_single_attempt_is_led_on_at_once(model, unexplained):
    assert [one.led for one in attempts(model, unexplained, Noise(), restarts=0)] == [True]


def test_an_attempt_that_explains_the_share_is_the_last(model, truth):
    share = sl.capture(model, truth, torch.eye(4)[0])
    tried = attempts(model, share, Image(truth + 1e-4), restarts=2)
    assert len(tried) == 1
    assert torch.allclose(tried[0].end[0], truth.double(), atol=1e-3)
