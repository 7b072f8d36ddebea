"""This module builds the normal matrix of a convolution's rows, without a dense Jacobian."""

from __future__ import annotations

import torch
from torch import Tensor

from softleak.inversion.matrix_tiles import transposed_columns
from softleak.inversion.rows import Rows


def normal_matrix(rows: Rows, around: Tensor, dtype: torch.dtype = torch.double) -> Tensor:
    """Return the normal matrix (n, n) of the rows, linearised around an input (n,).

    Let T be the convolution's matrix (m, n) and Λ the precision of its output. Gradients see x
    directly by a matrix B, alike for all channels, and through δ by ``M T``. The matrix is
    ``(B + M T)ᵀ(B + M T) + TᵀΛT``, and the ridge.

    Args:
        rows: The rows.
        around: The input (n,) around which δ is linearised.
        dtype: The precision in which to add up. Numbers beyond its range make infinities.
    """
    curvature = rows.curvature.flatten(1)[:, None]
    through = (curvature * rows.patches(around) / rows.g_error[..., None]).to(dtype)
    direct = gradient_rows(rows).to(dtype)
    inner = _halved_precision(rows, dtype)
    add_blocks(inner, through.transpose(1, 2) @ through / 2)
    half = _transposed(rows, inner)
    _add_crossed(half, direct, through)
    total = _transposed(rows, half.T.contiguous())
    total += total.T.contiguous()  # a third of the time of adding the transpose as it lies
    flat = direct.flatten(0, 1)
    add_blocks(total, (flat.T @ flat).expand(rows.shape[0], -1, -1))
    total.diagonal().add_(rows.prior_size**-2)
    return total


def gradient_rows(rows: Rows) -> Tensor:
    """Return what gradients of the kernel see of one input channel, of any: (Co, k, H·W).

    Each is the sum of δ, in units of the gradient's error, over the positions whose tap sees the
    pixel.
    """
    seen = rows.geometry.plane.T  # (k, L)
    scaled = rows.delta.flatten(1) / rows.g_error[:, :1]
    outputs = scaled[:, None].expand(-1, len(seen), -1)
    size = rows.geometry.size[0] * rows.geometry.size[1]
    found = rows.delta.new_zeros(len(scaled), len(seen), size + 1)
    return found.scatter_add_(2, seen.expand(len(scaled), -1, -1), outputs)[..., :-1]


def add_blocks(matrix: Tensor, blocks: Tensor) -> None:
    """Add square ``blocks`` (B, s, s) to the diagonal of a matrix (B·s, B·s), in place."""
    size = blocks.shape[1]
    for i, block in enumerate(blocks):
        matrix[i * size : (i + 1) * size, i * size : (i + 1) * size] += block


def _transposed(rows: Rows, columns: Tensor) -> Tensor:
    """Return ``Tᵀ columns`` (n, R) for columns (m, R), T being the convolution's matrix (m, n)."""
    shaped = columns.view(*rows.z.shape, -1)
    return transposed_columns(rows.geometry, rows.kernel.to(columns.dtype), shaped)


def _halved_precision(rows: Rows, dtype: torch.dtype) -> Tensor:
    """Return half of the precision Λ (m, m) of the forward rows."""
    if rows.precision is not None:
        return rows.precision.to(dtype) / 2
    return rows.weighted(torch.ones_like(rows.z)).flatten().diag().to(dtype) / 2


def _add_crossed(half: Tensor, direct: Tensor, through: Tensor) -> None:
    """Add ``BᵀM`` to (n, m), in place, of B (Co, k, H·W) per channel and M (Co, C·k + 1, L)."""
    outputs, taps, plane = direct.shape
    per_channel = through[:, :-1].view(outputs, -1, taps, through.shape[-1])
    product = direct.transpose(1, 2)[:, None] @ per_channel  # (Co, C, H·W, L)
    half.view(-1, plane, outputs, through.shape[-1]).add_(product.permute(1, 2, 0, 3))
