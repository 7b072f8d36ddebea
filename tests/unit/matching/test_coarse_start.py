"""A coarse image is looked for by trying, before any step is taken."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.matching import GaussNewton
from softleak.matching.gauss_newton.coarse_start import CoarseSearch, coarse_changes
from softleak.matching.gauss_newton.share_equations import BatchKnowledge, ShareEquations
from softleak.matching.stopping import Stopping
from softleak.subject import Subject

SHAPE = (3, 8, 8)


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
    model = GaussNewton(memory=1 << 26).model(subject, tuple(share), tuple(images.shape))
    equations = ShareEquations.of(model.exact, share, BatchKnowledge(labels), torch.float32)
    return equations, model.exact.pack(torch.zeros_like(images).double(), labels.double())


def searched(subject, images, stopping=None):
    equations, grey = problem(subject, images)
    found = CoarseSearch()(equations, grey, stopping or Stopping(1))
    return equations, grey, found


def colours(*values):
    return torch.tensor(values)[:, :, None, None].expand(-1, *SHAPE).contiguous()


def test_the_colour_of_a_flat_image_is_found_from_grey(subject):
    image = colours((1.5, 0.7, -1.2))
    equations, _, found = searched(subject, image)
    assert (equations.function.inputs(found) - image).abs().max() < 0.5
    assert torch.equal(equations.function.labels(found), equations.known.labels.double())


def test_each_image_of_a_batch_has_its_own_colour(subject):
    images = colours((1.5, 1.5, 1.5), (-1.5, -1.5, -1.5))
    equations, _, found = searched(subject, images)
    means = equations.function.inputs(found).mean((1, 2, 3))
    assert means[0] > 0.5
    assert means[1] < -0.5


@pytest.mark.parametrize("seed", range(3))
def test_no_search_ends_with_a_larger_misfit(subject, seed):
    image = torch.randn(1, *SHAPE, generator=torch.Generator().manual_seed(seed))
    equations, grey, found = searched(subject, image)
    assert equations.residual(found).norm() <= equations.residual(grey).norm()


def test_nothing_is_tried_when_the_time_is_up(subject):
    _, grey, found = searched(subject, colours((1.5, 1.5, 1.5)), Stopping(1, seconds=0.0))
    assert torch.equal(found, grey)


def test_inputs_that_are_not_images_stay_as_they_are():
    torch.manual_seed(0)
    flat = Subject.of(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)), (6,))
    _, start, found = searched(flat, torch.full((1, 6), 2.0))
    assert torch.equal(found, start)


def test_changes_are_of_one_image_and_of_one_channel_or_all():
    changes = coarse_changes((2, 3, 4, 5), 2)
    assert changes.shape == (2 * 4 * 4, 2, 3, 4, 5)
    touched = changes.abs().amax((-2, -1)) > 0
    assert bool((touched.any(2).sum(1) == 1).all())
    assert set(touched.sum((1, 2)).tolist()) == {1, 3}
    assert changes.abs().amax() == pytest.approx(1.0)


def test_gauss_newton_begins_at_the_coarse_image_unless_told_not_to(subject):
    image = colours((1.5, 0.7, -1.2))
    equations, grey, found = searched(subject, image)
    share = sl.capture(subject.model, image, equations.known.labels)
    start, stopping = equations.function.inputs(grey), Stopping(1)
    method = GaussNewton(memory=1 << 26)
    coarse = method.coarse_start(subject, share, equations.known, start, stopping)
    assert torch.equal(coarse, equations.function.inputs(found))
    plain = GaussNewton(memory=1 << 26, coarse=None)
    assert torch.equal(plain.coarse_start(subject, share, equations.known, start, stopping), start)
