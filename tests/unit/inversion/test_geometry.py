"""The linear maps of a convolution, against PyTorch's layer and against each other."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from softleak.core.errors import ModelError
from softleak.inversion.conv.rows import Geometry, padding_of
from tests.unit.inversion.examples import CONVOLUTIONS, normal

SIZE = (7, 6)


def made(options: dict[str, object], groups: int = 1) -> tuple[nn.Conv2d, Geometry]:
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 6, groups=groups, bias=False, **options).double()
    return layer, Geometry.of(layer, SIZE)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
def test_the_transpose_is_the_adjoint_of_the_layer(options, groups):
    layer, geometry = made(options, groups)
    x, kernel = normal(3, 4, *SIZE), layer.weight.detach()
    y = geometry.forward(x, kernel, groups)
    assert torch.equal(y, layer(x))
    other = normal(*y.shape, seed=1)
    back = geometry.transposed(other, kernel, groups)
    torch.testing.assert_close((y * other).sum(), (x * back).sum())


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
def test_patches_are_what_the_kernel_sees(options):
    layer, geometry = made(options)
    x, kernel = normal(4, *SIZE), layer.weight.detach()
    patches = geometry.patches(x)
    y = geometry.forward(x[None], kernel)[0]
    torch.testing.assert_close(kernel.flatten(1) @ patches, y.flatten(1))
    padded = torch.cat([x.flatten(1), torch.zeros(4, 1).double()], 1)
    seen = padded[:, geometry.plane.T].flatten(0, 1)
    assert torch.equal(seen, patches)
    other = normal(*patches.shape, seed=1)
    torch.testing.assert_close((patches * other).sum(), (x * geometry.gathered(other)).sum())


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
def test_local_blocks_are_added_where_the_positions_look(options):
    """Against the sum over positions of ``Pᵀ block P`` with dense selections P."""
    _, geometry = made(options)
    positions, taps = geometry.plane.shape
    area = SIZE[0] * SIZE[1]
    blocks = normal(2, taps, 2, taps, positions)
    expected = torch.zeros(2 * area, 2 * area).double()
    for position in range(positions):
        select = torch.zeros(taps, area + 1).double()
        select[torch.arange(taps), geometry.plane[position]] = 1
        both = torch.kron(torch.eye(2).double(), select[:, :-1])
        expected += both.T @ blocks[..., position].reshape(2 * taps, 2 * taps) @ both
    found = torch.zeros_like(expected)
    geometry.add_local(found, blocks)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("options", "padding"),
    [
        ({"kernel_size": 3, "padding": "same"}, (1, 1)),
        ({"kernel_size": (5, 3), "padding": "same", "dilation": (1, 2)}, (2, 2)),
        ({"kernel_size": 3, "padding": "valid"}, (0, 0)),
        ({"kernel_size": 3, "padding": (2, 1)}, (2, 1)),
        ({"kernel_size": 4, "padding": "same"}, None),
    ],
    ids=str,
)
def test_padding_is_read_off_a_layer(options, padding):
    assert padding_of(nn.Conv2d(1, 1, **options)) == padding


def test_unequal_padding_is_refused_with_what_came():
    with pytest.raises(ModelError, match="same padding on both sides, got 'same'"):
        Geometry.of(nn.Conv2d(1, 1, 4, padding="same"), SIZE)
