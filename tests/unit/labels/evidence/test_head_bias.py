from __future__ import annotations

import pytest
import torch

from softleak.labels.evidence.relation import HeadBias

from .known_case import Known, peak

CASE = Known.of(torch.rand(6, 30, generator=torch.Generator().manual_seed(0), dtype=torch.double))


def test_the_scalar_is_found_within_its_error():
    found = HeadBias("bias").solve(CASE.delta.float().double(), CASE.head, CASE.factors)
    assert bool(((found.scalar - CASE.tau).abs() <= found.error).all())
    assert bool((found.error < 1e-4 * CASE.tau.abs()).all())


def test_the_likelihood_is_that_of_least_squares():
    noise = 0.01
    generator = torch.Generator().manual_seed(4)
    g = CASE.delta[0] + noise * torch.randn(10, generator=generator, dtype=torch.double)
    tau = float(CASE.tau[0]) + torch.linspace(-0.2, 0.2, 4001, dtype=torch.double)
    log = HeadBias("bias").log_likelihood(g, CASE.blurred(0, noise), tau)
    assert peak(log, tau) == pytest.approx(float(g @ CASE.factors.u[0]), abs=2e-4)
    weight = (log - log.max()).exp()
    weight = weight / weight.sum()
    mean = (weight * tau).sum()
    # u is a unit vector, so the scalar has the standard error of one entry.
    assert float((weight * (tau - mean).square()).sum().sqrt()) == pytest.approx(noise, rel=0.01)
