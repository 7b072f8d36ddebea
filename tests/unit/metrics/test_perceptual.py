from __future__ import annotations

import numpy as np
import pytest
import torch

from softleak.audit.metrics import lpips
from softleak.core.errors import DataError
from softleak.paper import data


@pytest.fixture
def images() -> torch.Tensor:
    return data.embedded().images.permute(0, 3, 1, 2).float() / 255


def test_the_authors_reference_images(packs):
    with np.load(packs / "lpips_reference_images.npz") as pack:
        kinds = ("ex_ref", "ex_p0", "ex_p1")
        ref, *others = (torch.tensor(pack[k]).permute(2, 0, 1) / 255 for k in kinds)
        expected = pack["expected_alex"]
    for other, distance in zip(others, expected, strict=True):
        assert lpips(other, ref) == pytest.approx(distance, abs=5e-4)


def test_equal_images_are_at_no_distance_and_noise_adds_to_it(images):
    torch.manual_seed(0)
    few = images[:20]
    assert lpips(few[0], few[0]) == 0
    means = []
    for size in (0.02, 0.1, 0.3):
        noisy = few + size * torch.randn_like(few)
        means.append(np.mean([lpips(a, b) for a, b in zip(noisy, few, strict=True)]))
    assert means == pytest.approx([0.0009, 0.033, 0.18], rel=0.5)
    assert np.mean([lpips(a, b) for a, b in zip(few, few.flip(0), strict=True)]) > 0.15


def test_the_distance_is_symmetric_and_clamped(images):
    a, b = images[0], images[50]
    assert lpips(a, b) == pytest.approx(lpips(b, a), rel=1e-5)
    white = torch.ones_like(a)
    assert lpips(a, 3 * white) == lpips(a, white)


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 16, 32), (3, 32)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(DataError, match="expected"):
        lpips(torch.rand(shape), torch.rand(shape))
