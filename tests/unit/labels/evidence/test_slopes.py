from __future__ import annotations

import pytest
import torch
from torch import nn

from softleak.labels.evidence.probes import KNOWN_ACTIVATIONS

FUNCTIONS = {
    "piecewise linear": (nn.ReLU(), nn.LeakyReLU(0.2)),
    "sigmoid": (nn.Sigmoid(),),
    "tanh": (nn.Tanh(),),
    "ELU": (nn.ELU(0.7), nn.SELU(), nn.CELU(1.3)),
    "softplus": (nn.Softplus(),),
    "softsign": (nn.Softsign(),),
}
PAIRS = [(a, f) for a in KNOWN_ACTIVATIONS for f in FUNCTIONS[a.name]]


def test_every_activation_is_covered():
    assert {a.name for a in KNOWN_ACTIVATIONS} == set(FUNCTIONS)


@pytest.mark.parametrize(
    ("activation", "function"),
    PAIRS,
    ids=lambda one: getattr(one, "name", None) or type(one).__name__,
)
def test_the_derivative_is_in_the_span_of_the_basis(activation, function):
    z = torch.linspace(-4, 4, 400, dtype=torch.double, requires_grad=True)
    x = function(z)
    (slope,) = torch.autograd.grad(x.sum(), z)
    x = x.detach()
    A = torch.stack(activation.basis(x), -1)
    theta = torch.linalg.lstsq(A, slope[:, None]).solution[:, 0]
    found = activation.derivative(x, tuple(theta.tolist()))
    assert torch.allclose(found, slope, atol=1e-10)


@pytest.mark.parametrize("activation", KNOWN_ACTIVATIONS, ids=lambda a: a.name)
def test_what_a_basis_says_of_itself_is_so(activation):
    x = torch.linspace(-0.9, 0.9, 40, dtype=torch.double)
    if activation.homogeneous:
        pairs = zip(activation.basis(x), activation.basis(3 * x), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    powers = [x**k for k in activation.powers]
    for term, power in zip(activation.basis(x), powers, strict=False):
        assert torch.allclose(term, power)
    assert len(powers) in (0, len(activation.basis(x)))
