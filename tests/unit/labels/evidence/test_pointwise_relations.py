from __future__ import annotations

import pytest
import torch
from torch import nn

from softleak.labels.evidence.probes import KNOWN_ACTIVATIONS, Pointwise

from .known_case import Known, peak

BY_NAME = {activation.name: activation for activation in KNOWN_ACTIVATIONS}
CASES = {
    "ReLU": (nn.ReLU(), "piecewise linear", (1.0, 0.0)),
    "leaky ReLU": (nn.LeakyReLU(0.3), "piecewise linear", (1.0, 0.3)),
    "sigmoid": (nn.Sigmoid(), "sigmoid", (1.0, -1.0)),
    "tanh": (nn.Tanh(), "tanh", (1.0, -1.0)),
    "ELU": (nn.ELU(), "ELU", (1.0, 1.0, 1.0)),
}


def clients(function: nn.Module, count: int = 5, size: int = 80) -> Known:
    generator = torch.Generator().manual_seed(3)
    return Known.of(function(torch.randn(count, size, generator=generator, dtype=torch.double)))


def relation(name: str, case: Known, channels: int = 80, **options: bool) -> Pointwise:
    _, kind, coefficients = CASES[name]
    peak = float(case.features.abs().max())
    return Pointwise("bias", channels, BY_NAME[kind], coefficients, peak, **options)


def gradients(case: Known, of: Pointwise) -> torch.Tensor:
    return of.gather(case.d * of.slope(case.features)).float().double()


@pytest.mark.parametrize("channels", [80, 20])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_scalar_is_found_within_its_error(name, channels, channels_last):
    case = clients(CASES[name][0])
    of = relation(name, case, channels, channels_last=channels_last)
    found = of.solve(gradients(case, of), case.head, case.factors)
    assert bool(((found.scalar - case.tau).abs() <= found.error).all())
    assert bool((found.error < 1e-3 * case.tau.abs()).all())
    assert bool((found.misfit < 1e-5).all())


def test_channels_are_summed_in_the_order_they_run():
    entries = torch.arange(6.0)
    first = Pointwise("bias", 2, BY_NAME["tanh"], ())
    last = Pointwise("bias", 2, BY_NAME["tanh"], (), channels_last=True)
    assert first.gather(entries).tolist() == [3.0, 12.0]
    assert last.gather(entries).tolist() == [6.0, 9.0]


def test_a_curved_activation_notices_a_second_sample_and_an_identity_does_not():
    case = clients(nn.Tanh())
    assert bool(relation("tanh", case).notices(case.factors).all())
    identity = Pointwise("bias", 80, BY_NAME["piecewise linear"], (1.0, 1.0))
    assert not bool(identity.notices(case.factors).any())


@pytest.mark.parametrize("name", ["ReLU", "sigmoid", "tanh"])
def test_behind_noise_the_likelihood_is_highest_near_the_scalar(name):
    case = clients(CASES[name][0])
    of = relation(name, case)
    clean = gradients(case, of)[0]
    noise = 0.01 * float(clean.square().mean().sqrt())
    generator = torch.Generator().manual_seed(1)
    g = clean + noise * torch.randn(80, generator=generator, dtype=torch.double)
    tau = float(case.tau[0]) * torch.linspace(0.9, 1.1, 401, dtype=torch.double)
    log = of.log_likelihood(g, case.blurred(0, noise), tau)
    # 80 entries with 1 % noise each tell the scalar to about a thousandth.
    assert peak(log, tau) == pytest.approx(float(case.tau[0]), rel=0.01)
