"""Sparse vectors of a space where the samples of a batch are alike."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from softleak.batches.sparse.directions import line_duals, lone_lines, sparse_directions


def alike(units: int, size: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features (units, size) that hardly differ, and a space of their columns with its errors.

    Two units alone are on for the last sample and for no other.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(units, 1 + size, generator=generator, dtype=torch.double)
    features = (drawn[:, :1] + 0.1 * drawn[:, 1:]).clamp_min(0)
    alone = ((features > 0).sum(1) == 1) & (features[:, -1] > 0)
    features[alone.nonzero()[2:, 0]] = 0
    R = features @ torch.randn(size, size, generator=generator, dtype=torch.double)
    errors = 6e-8 * R.square().mean(1).sqrt().clamp_min(1e-3)
    moves = torch.randn(R.shape, generator=generator, dtype=torch.double)
    return features, R + errors[:, None] * moves, errors


@pytest.mark.parametrize(("units", "seed"), [(600, 0), (1000, 0), (1000, 1)])
def test_a_sample_without_a_line_is_found_beside_those_that_have_one(units, seed):
    features, R, errors = alike(units, 4, seed)
    assert len(lone_lines(R, errors)) == 3
    found = sparse_directions(R, errors)
    assert len(found) == 4
    off = {tuple(zeros.tolist()) for zeros in found.zeros}
    assert off == {tuple((features[:, i] == 0).tolist()) for i in range(4)}


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_duals_are_orthogonal_to_all_lines_but_one(missing):
    generator = torch.Generator().manual_seed(0)
    lines = torch.randn(5 - missing, 5, generator=generator, dtype=torch.double)
    lines = lines / lines.norm(dim=1, keepdim=True)
    duals = line_duals(lines)
    assert len(duals) == (5, 1, 0)[missing]
    expected = torch.eye(5, dtype=torch.double) if missing == 0 else torch.zeros(len(duals), 4)
    if len(duals):
        torch.testing.assert_close(duals @ lines.T, expected.double(), rtol=0, atol=1e-12)
