from __future__ import annotations

import math

import pytest
import torch

from softleak.audit.metrics import psnr, ssim


@pytest.fixture
def image() -> torch.Tensor:
    return torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_a_constant_error_has_the_psnr_of_its_size(image):
    inside = image * 0.5 + 0.1
    assert psnr(inside + 0.01, inside) == pytest.approx(40.0, abs=1e-4)
    assert ssim(inside, inside) == pytest.approx(1.0)
    assert ssim(1 - inside, inside) < 0.1


def test_only_what_can_be_shown_counts(image):
    white = image.clone()
    white[0] = 1.0
    beyond = white.clone()
    beyond[0] = 7.0
    assert psnr(beyond, white) == psnr(white, white)
    assert math.isfinite(psnr(white, white))
