"""This module looks for other inputs that would have sent the same: shifted, mirrored, exchanged.

The Jacobian tells whether neighbours of an image would have sent something else. It says nothing of
images far away. A network may be blind to a change of its input that is no small one: with circular
padding it does not see where an image begins; without positions, in which order patches come.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from softleak.matching.gauss_newton.share_equations import ShareEquations

PATCHES = (2, 4, 8, 16)
IMAGE_BATCH = 4  # dimensions of (B, C, H, W)


def changed_inputs(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield inputs (B, …) that a network may take for the same, with what was done to them."""
    yield "negated", -x
    for axis in range(1, x.ndim):
        length = x.shape[axis]
        yield "mirrored", x.flip(axis)
        shift = 1
        while shift < length:
            yield "shifted", x.roll(shift, axis)
            shift *= 2
    if x.ndim == IMAGE_BATCH:
        yield from _rearranged(x)
    if len(x) > 1:
        for axis in range(1, x.ndim):
            half = x.clone()
            first = half.narrow(axis, 0, (x.shape[axis] + 1) // 2)
            first.copy_(first.clone().roll(1, 0))
            yield "exchanged in part between samples", half


def _rearranged(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield images (B, C, H, W) transposed, and with two patches exchanged."""
    height, width = x.shape[2:]
    if height == width:
        yield "transposed", x.transpose(2, 3)
    for size in PATCHES:
        if 2 * size <= width and size <= height:
            swapped = x.clone()
            swapped[..., :size, : 2 * size] = x[..., :size, : 2 * size].roll(size, 3)
            yield "with two patches exchanged", swapped


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
