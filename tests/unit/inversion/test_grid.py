from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import softleak as sl
from softleak.inversion.steps import Scale, scale_on_grid
from softleak.paper import models

SPACING = torch.finfo(torch.float32).eps / 2


def drawn(seed: int, entries: int = 400, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(entries, generator=generator).double().to(dtype).double()


def measured(x: Tensor, seed: int, off: float, part: float = 0.05) -> Tensor:
    """Numbers as rows of a gradient tell them: each to a part of the spacing, all to a factor."""
    noise = torch.randn(len(x), generator=torch.Generator().manual_seed(seed + 1)).double()
    return x * (1 + part * SPACING * noise) * (1 + off)


def found(x: Tensor, unsure: float, part: float = 0.05) -> Scale | None:
    return scale_on_grid(x, part * SPACING * x.abs(), unsure, torch.float32)


@given(st.integers(0, 1000), st.floats(-1e-6, 1e-6))
def test_the_scale_is_that_of_the_numbers(seed, off):
    x = drawn(seed)
    scale = found(measured(x, seed, off), 3e-7)
    assert scale is not None
    assert abs(scale.factor * (1 + off) - 1) < 6 * scale.error
    assert scale.error < 1e-2 * SPACING


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_any_precision_has_its_grid(dtype):
    x = drawn(0, dtype=dtype)
    spacing = torch.finfo(dtype).eps / 2
    scale = scale_on_grid(x * (1 + 3 * spacing), 0.01 * spacing * x.abs(), 2 * spacing, dtype)
    assert scale is not None
    assert abs(scale.factor * (1 + 3 * spacing) - 1) < 6 * scale.error
    assert scale.error < 1e-2 * spacing


@given(st.integers(0, 1000))
def test_numbers_that_are_on_no_grid_are_left_alone(seed):
    x = torch.randn(400, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    assert found(x, 3e-7) is None


@pytest.mark.parametrize(
    "x",
    [torch.full((400,), 0.3), torch.tensor([0.25, 0.5, 1.0]).repeat(100), drawn(0, 16)],
    ids=["all the same", "powers of two", "too few"],
)
def test_numbers_that_are_on_the_grid_at_many_scales_tell_none(x):
    assert found(x.double(), 3e-7) is None


def test_what_is_hardly_known_is_not_searched():
    x = drawn(0)
    assert found(x, 1e-3) is None
    assert found(x, float("inf")) is None
    assert found(x, 3e-7, part=0.5) is None
    assert scale_on_grid(x, 0 * x, 1e-17, torch.float64) is None


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh], ids=lambda kind: kind.__name__)
def test_inputs_of_a_network_without_biases_are_found_to_the_last_bit(activation):
    torch.manual_seed(0)
    model = models.fcn4(10, 16, activation=activation).eval()
    x = torch.randn(3, 16, 16)
    share = sl.capture(model, x, torch.tensor([0.73, 0.27] + [0.0] * 8))
    inversion = sl.invert(model, share, sl.recover_label(model, share))
    assert torch.equal(inversion.input.float(), x)
    true = (inversion.input - x).square().mean().sqrt()
    assert 0.5 < float(true / inversion.error.square().mean().sqrt()) < 2


def test_noise_hides_the_grid_and_the_prediction_says_so():
    torch.manual_seed(0)
    model, x = models.fcn4(10, 16).eval(), torch.randn(3, 16, 16)
    share = sl.capture(model, x, 3)
    noisy = share.map(lambda _, g: g + 1e-7 * torch.randn_like(g)).expecting(1e-7)
    inversion = sl.invert(model, noisy, sl.recover_label(model, noisy))
    true = (inversion.input - x).square().mean().sqrt()
    assert not torch.equal(inversion.input.float(), x)
    assert float(true) < 3 * float(inversion.error.square().mean().sqrt())
