"""This module looks for other inputs that would have sent the same: shifted, mirrored, exchanged.

The Jacobian tells whether neighbours of an image would have sent something else. It says nothing of
images far away. A network may be blind to a change of its input that is no small one: with circular
padding it does not see where an image begins; without positions, in which order patches come.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from softleak.matching.gauss_newton.share_equations import ShareEquations

IMAGE_BATCH = 4  # dimensions of (B, C, H, W)


def changed_inputs(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield inputs (B, …) that a network may take for the same, with what was done to them."""
    yield from _with_other_signs(x)
    for axis in range(1, x.ndim):
        if x.shape[axis] > 1:
            yield "mirrored", x.flip(axis)
        for shift in range(1, x.shape[axis]):
            yield "shifted", x.roll(shift, axis)
    if x.ndim >= IMAGE_BATCH:
        yield from _turned(x)
    for block in _blocks(x.shape[1:]):
        yield from _exchanged(x, block)


def _with_other_signs(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield inputs that are negated: all of them, one channel, or one entry."""
    yield "negated", -x
    for channel in range(x.shape[1]):
        changed = x.clone()
        changed[:, channel] *= -1
        yield "with a part of it negated", changed
    changed = x.clone().flatten(1)
    changed[:, int(changed[0].abs().argmax())] *= -1
    yield "with one entry negated", changed.view_as(x)


def _turned(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield images turned by multiples of a right angle, and transposed."""
    yield "turned upside down", x.rot90(2, (-2, -1))
    if x.shape[-1] == x.shape[-2]:
        yield "transposed", x.transpose(-2, -1)
        for quarters in (1, 3):
            yield "turned by a right angle", x.rot90(quarters, (-2, -1))


def _blocks(shape: torch.Size) -> Iterator[tuple[int, ...]]:
    """Yield shapes of parts of an input: slices along each axis, and patches through all channels.

    A network that does not see the order of patches does not see that of twice as large ones
    either, so that small patches need not be tried. Large ones are told from each other better.
    """
    for axis, length in enumerate(shape):
        for size in _sizes(length, length // 2):
            yield (*shape[:axis], size, *shape[axis + 1 :])
    if len(shape) < IMAGE_BATCH - 1:
        return
    *before, high, wide = shape
    frames = [before[-1], *_sizes(before[-1], before[-1] // 2)] if len(before) > 1 else before[-1:]
    for depth, rows, columns in product(frames, _sizes(high, high), _sizes(wide, wide)):
        if 2 * rows <= high or 2 * columns <= wide:
            yield (*before[:-1], depth, rows, columns)


def _sizes(length: int, largest: int) -> range:
    """Return the sizes of parts of an axis that are tried: more than a quarter of it."""
    return range(length // 4 + 1, largest + 1)


def _exchanged(x: Tensor, block: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    """Yield inputs of which two neighbouring blocks change places, or blocks of two samples.

    Blocks lie on a grid. The neighbours that differ most are taken, along each axis that holds two.
    """
    for axis, size in enumerate(block):
        if 2 * size <= x.shape[axis + 1]:
            here = _most_different(x, block, axis)
            there = list(here)
            there[axis] = slice(here[axis].start + size, here[axis].stop + size)
            one, other = (slice(None), *here), (slice(None), *there)
            swapped = x.clone()
            swapped[one], swapped[other] = x[other], x[one]
            yield "with two parts of it exchanged", swapped
    if len(x) > 1:
        corner = (slice(None), *(slice(0, size) for size in block))
        between = x.clone()
        between[corner] = x[corner].roll(1, 0)
        yield "exchanged in part between samples", between


def _most_different(x: Tensor, block: tuple[int, ...], axis: int) -> tuple[slice, ...]:
    """Return where the block lies that differs most from its neighbour along an axis."""
    size, length = block[axis], x.shape[axis + 1]
    rest = length - size
    off = (x.narrow(axis + 1, size, rest) - x.narrow(axis + 1, 0, rest)).square().sum(0)
    for dim, step in enumerate(block):
        off = off.unfold(dim, step, step).sum(-1)
    best = torch.unravel_index(off.argmax(), off.shape)
    return tuple(
        slice(int(at) * step, int(at) * step + step) for at, step in zip(best, block, strict=True)
    )


def find_look_alike(equations: ShareEquations, z: Tensor, error: Tensor, margin: float) -> str:
    """Return what could be done to the inputs without changing what they send, or nothing.

    Args:
        equations: the equations that the inputs fulfil.
        z: the unknowns (n,).
        error: the standard error of each entry of the inputs.
        margin: other inputs whose misfit is below this, in standard errors, send the same.
    """
    function = equations.function
    x, y = function.inputs(z), function.labels(z)
    for what, other in changed_inputs(x):
        if not bool(((other - x).abs() > 10 * error).any()):
            continue
        r = equations.residual(function.pack(other, y))
        if float(r.square().mean().sqrt()) < margin:
            return what
    return ""
