"""The colour of an image is looked for by trying, before any step is taken."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.subject import Subject
from softleak.matching import GaussNewton
from softleak.matching.gauss_newton import method
from softleak.matching.gauss_newton.equations import BatchKnowledge
from softleak.matching.gauss_newton.method import LEVELS, flat_images, misfit
from softleak.matching.reconstruction import Stopping

SHAPE = (3, 8, 8)
SMALL = GaussNewton(memory=1 << 26)


@pytest.fixture(scope="module")
def subject():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.SiLU(), nn.Flatten(), nn.Linear(128, 4)
    )
    return Subject.of(model.eval(), SHAPE)


def problem(subject, images):
    labels = torch.eye(4)[: len(images)] * 0.8 + 0.05
    share = sl.capture(subject.model, images, labels)
    model = SMALL.model(subject, tuple(share), tuple(images.shape))
    known = BatchKnowledge(labels)
    return share, known.equations(model.exact, share, torch.float32)


def searched(subject, images, stopping=None):
    equations = problem(subject, images)[1]
    return flat_images(equations, torch.zeros_like(images).double(), stopping or Stopping(1))


def colours(*values):
    return torch.tensor(values)[:, :, None, None].expand(-1, *SHAPE).contiguous()


def test_the_colour_of_a_flat_image_is_found_from_grey(subject):
    image = colours((1.2, 0.5, -1.2))
    assert torch.equal(searched(subject, image).float(), image)


def test_each_image_of_a_batch_has_its_own_colour(subject):
    means = searched(subject, colours((1.5, 1.5, 1.5), (-1.5, -1.5, -1.5))).mean((1, 2, 3))
    assert means[0] > 0.5
    assert means[1] < -0.5


@pytest.mark.parametrize("seed", range(3))
def test_no_search_ends_with_a_larger_misfit(subject, seed):
    image = torch.randn(1, *SHAPE, generator=torch.Generator().manual_seed(seed))
    equations, grey = problem(subject, image)[1], torch.zeros_like(image)
    assert misfit(equations, searched(subject, image)) <= misfit(equations, grey)


def test_nothing_is_tried_when_the_time_is_up(subject):
    found = searched(subject, colours((1.2, 1.2, 1.2)), Stopping(1, seconds=0.0))
    assert not found.any()


def test_inputs_that_are_not_images_stay_as_they_are():
    torch.manual_seed(0)
    flat = Subject.of(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)), (6,))
    assert not searched(flat, torch.full((1, 6), 2.0)).any()


def test_many_channels_have_one_level_in_common():
    assert len(method.colours(1)) == len(LEVELS)
    assert len(method.colours(3)) == len(LEVELS) ** 3
    assert method.colours(4) == [(level,) * 4 for level in LEVELS]


def test_a_network_that_overflows_is_infinitely_far(subject):
    equations = problem(subject, colours((0.0, 0.0, 0.0)))[1]
    assert misfit(equations, torch.full((1, *SHAPE), 1e300, dtype=torch.double)) == float("inf")


def test_images_of_a_batch_stay_unlike_each_other(subject):
    images = colours((1.2, 1.2, 1.2), (1.2, 1.2, 1.2))
    noise = 0.01 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0)).double()
    added = flat_images(problem(subject, images)[1], noise, Stopping(1)) - noise
    assert torch.allclose(added, added.mean((2, 3), keepdim=True))
    assert added.mean() > 0.5


def test_gauss_newton_begins_at_the_colour_unless_told_not_to(subject):
    image = colours((1.2, 0.5, -1.2))
    share, _ = problem(subject, image)
    known = BatchKnowledge(torch.eye(4)[:1] * 0.8 + 0.05)
    start, stopping = 0.01 * torch.ones_like(image), Stopping(1)
    found = SMALL.flat_start(subject, share, known, start, stopping)
    assert torch.equal(found.float(), image)
    plain = GaussNewton(memory=1 << 26, flat=False)
    assert plain.flat_start(subject, share, known, start, stopping) is start
