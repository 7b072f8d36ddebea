"""Transposed convolutions of many columns, tile by tile."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from softleak.inversion.conv.rows import Geometry, transposed_columns
from tests.unit.inversion.examples import normal


@pytest.mark.parametrize("size", [(8, 8), (7, 9), (5, 6)])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("padding", "dilation"), [(0, 1), (2, 1), (1, 2)])
def test_tiles_add_up_to_the_transpose(size, stride, padding, dilation):
    layer = nn.Conv2d(2, 3, 3, stride, padding, dilation).double()
    geometry, kernel = Geometry.of(layer, size), layer.weight.detach()
    shape = geometry.forward(torch.zeros(1, 2, *size).double(), kernel).shape[1:]
    columns = normal(*shape, 4)
    expected = geometry.transposed(columns.permute(3, 0, 1, 2), kernel).flatten(1).T
    torch.testing.assert_close(transposed_columns(geometry, kernel, columns), expected)
