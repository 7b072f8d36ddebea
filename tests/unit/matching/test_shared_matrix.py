"""Near the solution several steps share a normal matrix; a proof notices if it is a wrong one."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

import softleak as sl
from benchmarks.gauss_newton_wrong import SHAPE, SmallResidual
from softleak.core.subject import Subject
from softleak.matching import GaussNewton
from softleak.matching.gauss_newton.certificate import Certifier
from softleak.matching.gauss_newton.descent import DampedDescent, NormalSteps
from softleak.matching.gauss_newton.equations import BatchKnowledge
from softleak.matching.gauss_newton.metric import Metric
from softleak.matching.reconstruction import Stopping


@pytest.fixture(scope="module")
def solved():
    """Return the model and the equations of a share, the truth, and a place near it."""
    torch.manual_seed(0)
    network = SmallResidual(nn.SiLU, pooled=False).eval()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, *SHAPE, generator=generator)
    y = torch.randn(1, 4, generator=generator).softmax(1)
    share = sl.capture(network, x[0], y[0])
    method = GaussNewton(memory=1 << 28)
    model = method.model(Subject.of(network, SHAPE), tuple(share), tuple(x.shape))
    equations = BatchKnowledge(y.double()).equations(model.exact, share, torch.float32)
    near = x + 0.03 * torch.randn(x.shape, generator=generator)
    return model, equations, x.double(), model.exact.pack(near.double(), y.double())


def walked(solved, repeats):
    model, equations, _, z = solved
    linearised = NormalSteps(model, equations, Metric.of_images(model.exact.shape, 2.0))
    return DampedDescent(repeats=repeats)(linearised, z, Stopping(60))


def test_steps_that_share_a_matrix_lead_to_the_same_place_with_fewer_matrices(solved):
    alone, together = walked(solved, 0), walked(solved, 10)
    assert together.steps < alone.steps
    truth, pixels = solved[2].reshape(-1), solved[2].numel()
    for walk in (alone, together):
        assert float((walk.z[:pixels] - truth).abs().max()) < 1e-3
    assert torch.allclose(together.z, alone.z, atol=1e-6)


def test_every_further_step_lowers_the_misfit(solved):
    misfits = walked(solved, 10).misfits
    assert all(later <= earlier for earlier, later in itertools.pairwise(misfits))


def test_the_slope_of_a_moved_matrix_is_that_of_its_place(solved):
    model, equations, _, z = solved
    linearised = NormalSteps(model, equations, Metric.of_images(model.exact.shape, 2.0))
    r = equations.residual(z)
    own = linearised.linearised(z, r, torch.float64)
    moved = linearised.moved(replace(own, slope=torch.zeros_like(own.slope)), z, r)
    assert torch.allclose(moved.slope, own.slope, rtol=1e-7, atol=1e-9 * float(own.slope.norm()))


def test_a_matrix_of_another_place_proves_nothing(solved):
    model, equations, _, _ = solved
    walk = walked(solved, 10)
    used = torch.ones_like(equations.weight)
    prove = Certifier(equations, model.client, model.products(torch.float64), used)
    assert prove(walk).proved
    other = replace(walk, normal=replace(walk.normal, matrix=4 * walk.normal.matrix))
    found = prove(other)
    assert not found.proved
    assert "Jacobian" in found.reason
