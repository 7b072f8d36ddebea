from __future__ import annotations

import pytest
import torch

from softleak.labels.evidence.probes import Lattice

from .known_case import Known, peak

GENERATOR = torch.Generator().manual_seed(0)
CASE = Known.of(torch.rand(6, 40, generator=GENERATOR, dtype=torch.double))
COUNTS = torch.randint(0, 17, (6, 40), generator=GENERATOR)


@pytest.mark.parametrize("gain", [1.0, 0.9])
def test_the_scalar_is_found_within_its_error(gain):
    g = (gain * CASE.d * COUNTS / 16).float().double()
    found = Lattice("bias", 16, gain).solve(g, CASE.head, CASE.factors)
    assert bool(((found.scalar - CASE.tau).abs() <= found.error).all())
    assert bool((found.error < 1e-4 * CASE.tau.abs()).all())
    assert bool((found.misfit < 1e-5).all())


def test_two_samples_lie_on_no_lattice():
    mixed = CASE.d * COUNTS / 16 + 0.37 * CASE.d * COUNTS.flip(0) / 16
    found = Lattice("bias", 16).solve(mixed, CASE.head, CASE.factors)
    assert bool((found.misfit > 1e-3).all())
    assert bool(Lattice("bias", 16).notices(CASE.factors).all())


def test_too_few_channels_say_nothing():
    few = torch.where(torch.arange(40) < 8, CASE.d * COUNTS / 16, 0.0)
    found = Lattice("bias", 16).solve(few, CASE.head, CASE.factors)
    assert bool(found.misfit.isinf().all())


def test_behind_noise_the_likelihood_is_highest_at_the_scalar():
    noise = 0.02 * float(CASE.d[0].abs().max()) / 16
    g = CASE.d[0] * COUNTS[0] / 16
    g = g + noise * torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    tau = float(CASE.tau[0]) * torch.linspace(0.6, 1.4, 801, dtype=torch.double)
    log = Lattice("bias", 16).log_likelihood(g, CASE.blurred(0, noise), tau)
    assert peak(log, tau) == pytest.approx(float(CASE.tau[0]), rel=0.01)
