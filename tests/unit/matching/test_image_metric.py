"""Rough changes of an image are damped more than smooth ones."""

from __future__ import annotations

import pytest
import torch

from softleak.matching import GaussNewton
from softleak.matching.gauss_newton.descent import NormalEquations
from softleak.matching.gauss_newton.metric import Metric, cosine_basis


@pytest.mark.parametrize("length", [1, 2, 5, 16])
def test_cosines_are_orthonormal(length):
    basis = cosine_basis(length)
    assert torch.allclose(basis @ basis.T, torch.eye(length, dtype=torch.double), atol=1e-12)


def test_the_metric_grows_with_the_frequency_along_both_axes():
    metric = Metric.of_images((2, 3, 4, 6), 1.0).matrix
    assert metric.shape == (24, 24)
    assert float(metric.diagonal().mean()) == pytest.approx(1.0)

    def length(f, g):
        wave = torch.outer(cosine_basis(4)[f], cosine_basis(6)[g]).reshape(-1)
        assert torch.allclose(metric @ wave, (wave @ metric @ wave) * wave, atol=1e-9)
        return float(wave @ metric @ wave)

    flat = length(0, 0)
    assert length(3, 0) / flat == pytest.approx(16.0)
    assert length(0, 3) / flat == pytest.approx(16.0)
    assert length(3, 4) / flat == pytest.approx(36.0)


@pytest.mark.parametrize(
    ("shape", "power"), [((1, 12), 1.0), ((1, 3, 4, 4), 0.0), ((1, 3, 1, 1), 1.0)]
)
def test_what_is_no_image_has_no_metric(shape, power):
    assert Metric.of_images(shape, power).covered == 0


def test_a_step_is_damped_by_the_metric_for_each_channel_and_by_the_diagonal_for_labels():
    generator = torch.Generator().manual_seed(0)
    jacobian = torch.randn(2 * 4 + 3, 40, generator=generator, dtype=torch.double)
    r = torch.randn(40, generator=generator, dtype=torch.double)
    metric, damping = Metric.of_images((1, 2, 2, 2), 1.0), 0.3
    normal = NormalEquations.of(jacobian, r, metric)
    step, promised = normal.step(damping)
    h = jacobian @ jacobian.T
    lengths = torch.block_diag(
        *[metric.matrix * h.diagonal()[:8].mean()] * 2, torch.diag(h.diagonal()[8:])
    )
    assert torch.allclose((h + damping * lengths) @ step, jacobian @ r)
    after = (r - step @ jacobian).square().sum()
    assert promised == pytest.approx(float(r.square().sum() - after))


def test_attempts_after_the_first_are_cautious():
    method = GaussNewton()
    assert method.attempt(0) is method
    second = method.attempt(1).descent.damping
    assert second.first > method.descent.damping.first
    assert second.lowered > method.descent.damping.lowered
    assert second.smoothness == method.descent.damping.smoothness
    third = method.attempt(2).descent.damping
    assert third.first > method.descent.damping.first
    assert third.smoothness < method.descent.damping.smoothness
    assert method.attempt(3) == method.attempt(1)
