"""Steps that are found without a matrix are those of the normal equations."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.results import Status
from softleak.matching import GaussNewton, Image
from softleak.matching.gauss_newton.descent import (
    DampedDescent,
    DampedProducts,
    MatrixFreeSteps,
)
from softleak.matching.gauss_newton.metric import Metric
from softleak.matching.reconstruction import Stopping, Watch

SHAPE = (2, 3, 4, 6)
PIXELS = 2 * 3 * 4 * 6


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.double)


def problem_of(jacobian, damping):
    scale = jacobian.square().sum(0).sqrt()
    lengths = Metric.of_images(SHAPE, 1.0)
    return DampedProducts(lambda v: jacobian @ v, lambda r: r @ jacobian, scale, lengths, damping)


def test_lengths_are_those_of_the_metric_for_each_channel_and_one_for_labels():
    u, metric = numbers(PIXELS + 5), Metric.of_images(SHAPE, 1.0).matrix
    found = Metric.of_images(SHAPE, 1.0).scaled(u, lambda values: values)
    known = torch.cat([(u[:PIXELS].view(-1, 24) @ metric).reshape(-1), u[PIXELS:]])
    assert torch.allclose(found, known)


@pytest.mark.parametrize(("shape", "power"), [((2, 72), 1.0), (SHAPE, 0.0)])
def test_without_a_metric_all_changes_are_equally_long(shape, power):
    u = numbers(PIXELS + 5)
    assert torch.equal(Metric.of_images(shape, power).scaled(u, lambda values: 3 * values), 3 * u)


def test_a_step_solves_the_damped_normal_equations():
    jacobian, r, damping = numbers(400, PIXELS + 5), numbers(400), 0.3
    problem = problem_of(jacobian, damping)
    s, left = problem.step(r, Stopping(1), forcing=1e-12)
    metric = torch.block_diag(*[Metric.of_images(SHAPE, 1.0).matrix] * 6, torch.eye(5).double())
    damped = jacobian.T @ jacobian + damping * metric * problem.scale[:, None] * problem.scale
    assert torch.allclose(damped @ s, jacobian.T @ r)
    assert torch.allclose(left, r - jacobian @ s)


def test_a_step_is_cut_short_when_somebody_asks_to_stop():
    watch = Watch()
    watch.stop()
    problem = problem_of(numbers(400, PIXELS + 5), 0.3)
    s, _ = problem.step(numbers(400), Stopping(1, watch=watch))
    assert not s.any()


def test_unknowns_are_counted_in_units_of_what_the_equations_say_unless_that_is_known():
    jacobian, weight = numbers(40, 12), 2 + numbers(40).abs()

    class Linear:
        def along(self, z, v):
            return jacobian @ v

        def against(self, z):
            return lambda r: r @ jacobian

    equations, lengths = SimpleNamespace(weight=weight), Metric()
    z, r = torch.zeros(12).double(), numbers(40)
    found = DampedProducts.of(equations, Linear(), lengths, z, 0.1, probes=3000)
    weighted = jacobian * weight[:, None]
    assert torch.allclose(found.scale, weighted.norm(dim=0), rtol=0.1)
    assert torch.allclose(found.along(z + 1), weighted.sum(1))
    assert torch.allclose(found.back(r), r @ weighted)
    again = DampedProducts.of(equations, Linear(), lengths, z, 0.1, scale=found.scale)
    assert again.scale is found.scale


WALK = DampedDescent(slow=0.95, patience=5)


class BentValley:
    """Rosenbrock's equations, whose valley bends: a long step along it leaves the floor."""

    weight = torch.full((2,), 1e6).double()

    def products(self, dtype):
        return self

    def residual(self, z):
        return torch.stack([10 * (z[1] - z[0] ** 2), 1 - z[0]]) * self.weight

    def jacobian(self, z):
        return torch.tensor([[-20 * float(z[0]), 10.0], [-1.0, 0.0]]).double()

    def along(self, z, v):
        return self.jacobian(z) @ v

    def against(self, z):
        return lambda r: r @ self.jacobian(z)


def test_a_long_step_is_mended_where_the_equations_bend():
    valley, begin = BentValley(), torch.tensor([-1.2, 1.0]).double()
    mended, plain = (
        WALK(MatrixFreeSteps(valley, valley, Metric(), mending), begin, Stopping(60))
        for mending in (20, 0)
    )
    assert torch.allclose(mended.z, torch.ones(2).double(), atol=1e-4)
    assert len(mended.misfits) < 0.7 * len(plain.misfits)


@pytest.mark.parametrize("near", [True, False])
def test_an_image_is_found_without_a_matrix(near):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 1, 1), nn.Sigmoid(), nn.Conv2d(8, 8, 3, 2, 1), nn.Sigmoid(),
        nn.Flatten(), nn.Linear(72, 5),
    )  # fmt: skip
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    x, y = torch.rand(1, 6, 6), torch.tensor([0.9, 0.1, 0.0, 0.0, 0.0])
    share = sl.capture(model, x, y)
    recovery = sl.recover_label(model, share)
    start = {"start": Image(x + 0.1)} if near else {}
    found = sl.reconstruct(
        model, share, recovery, optimiser=GaussNewton(dense=10), restarts=2, **start
    )
    assert float((found.input - x).abs().max()) < 1e-3
    assert found.status is Status.CONVERGED
    assert found.certificate.explained
    assert max(found.certificate.layers.values()) < 5
    assert "41 unknowns are too many" in found.certificate.reason
