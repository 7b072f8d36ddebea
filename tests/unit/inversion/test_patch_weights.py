"""Equations that are weighed by the rounding of their sums tell more, and know how much."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from softleak.inversion.patches import running_sums, unweighed, weighed


def problem(seed: int, size: tuple[int, int, int] = (96, 24, 64)) -> tuple[Tensor, ...]:
    """Return U (d, r) with orthonormal columns, variances (d, K), z (r, K) and U z + errors."""
    generator = torch.Generator().manual_seed(seed)
    d, r, K = size

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.double)

    U = torch.linalg.qr(drawn(d, r)).Q
    variance = (1.5 * drawn(d, K)).exp()
    z = drawn(r, K)
    return U, variance, z, U @ z + variance.sqrt() * drawn(d, K)


@pytest.mark.parametrize("seed", range(3))
def test_weights_halve_the_error_and_predict_it(seed: int) -> None:
    U, variance, z, b = problem(seed)
    before, after = unweighed(U, b), weighed(U, b, 7.0 * variance)
    off = [(one.seen - z).square().mean() for one in (before, after)]
    assert float(off[1]) < 0.5 * float(off[0])
    for one, error in zip((before, after), off, strict=True):
        assert 0.7 < float(one.variance.mean() / error) < 1.4


def test_sums_that_describe_nothing_are_not_believed() -> None:
    U, variance, z, b = problem(3)
    wrong = variance.flip(0, 1)
    before, after = unweighed(U, b), weighed(U, b, wrong)
    off = [float((one.seen - z).square().mean()) for one in (before, after)]
    assert off[1] < 1.1 * off[0]


def test_a_square_system_needs_no_weights() -> None:
    U, variance, _, b = problem(4, (24, 24, 16))
    assert torch.equal(weighed(U, b, variance).seen, unweighed(U, b).seen)


def test_the_sums_of_a_client_describe_its_rounding() -> None:
    generator = torch.Generator().manual_seed(5)
    delta = torch.randn(100, 30, generator=generator) * torch.linspace(-3, 3, 100).exp()[:, None]
    X = torch.rand(100, 20, generator=generator)
    total = torch.zeros(30, 20)
    for row, patch in zip(delta, X, strict=True):
        total += torch.outer(row, patch)
    error = (total.double() - delta.double().T @ X.double()).square()
    sums = running_sums(delta.double(), X.double())
    order = sums.flatten().argsort()
    low, high = error.flatten()[order[:200]].mean(), error.flatten()[order[-200:]].mean()
    assert float(high) > 4 * float(low)
