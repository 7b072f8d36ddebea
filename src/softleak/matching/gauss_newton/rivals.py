"""Look for another value of a single entry that would have sent the same.

If every entry of an input enters the network through a function that takes some values twice, as
``x exp(−x)`` does, both values send the same. The function may be anything, so that no list has the
other value. All other entries are known, however, and one number can be searched for on a line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from softleak.matching.gauss_newton.equations import ShareEquations

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


GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class EntrySearch:
    """Search for other values of some entries of an input, one entry at a time."""

    entries: int = 7  # how many entries are tried, from the smallest to the largest
    # values of an entry that are tried near those of the input, and as many far away
    points: int = 96
    beyond: float = 32.0  # how far values reach beyond those of the input, at least by its range
    narrowings: int = 80  # how often the interval around a smallest misfit is narrowed

    def __call__(self, equations: ShareEquations, z: Tensor, error: Tensor, margin: float) -> bool:
        """Return whether another value of an entry explains the share.

        Args:
            equations: the equations that the inputs fulfil.
            z: the unknowns (n,).
            error: the standard error of each entry of the inputs.
            margin: other inputs whose misfit is below this, in standard errors, send the same.
        """
        flat = z[: equations.function.pixels]
        order = flat.argsort().tolist()
        places = torch.linspace(0, len(order) - 1, self.entries).round().long().tolist()
        low, high = float(flat.min()), float(flat.max())
        span = high - low
        near = torch.linspace(low - span, high + span, self.points).tolist()
        reach = max(self.beyond, span)
        values = sorted(near + torch.linspace(low - reach, high + reach, self.points).tolist())
        return any(
            self._other(equations, z, at, values, 10 * float(error.flatten()[at]), margin)
            for at in dict.fromkeys(order[place] for place in places)
        )

    def _other(
        self, equations: ShareEquations, z: Tensor, at: int, values: list[float], near: float,
        margin: float,
    ) -> bool:  # fmt: skip
        """Return whether a value that is not near the entry's own one leaves no misfit."""

        def misfit(value: float) -> float:
            changed = z.clone()
            changed[at] = value
            size = float(equations.residual(changed).square().mean().sqrt())
            return size if math.isfinite(size) else math.inf

        own, sizes = float(z[at]), [misfit(value) for value in values]
        for k in range(1, len(values) - 1):
            lowest = sizes[k] <= min(sizes[k - 1], sizes[k + 1])
            if lowest and not values[k - 1] <= own <= values[k + 1]:
                value = self._narrowed(misfit, values[k - 1], values[k + 1])
                if misfit(value) < margin and abs(value - own) > near:
                    return True
        return False

    def _narrowed(self, misfit: Callable[[float], float], low: float, high: float) -> float:
        """Return where a function of one number is least within an interval, by golden sections."""
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        one, other = misfit(left), misfit(right)
        for _ in range(self.narrowings):
            if one < other:
                high, right, other = right, left, one
                left = high - GOLDEN * (high - low)
                one = misfit(left)
            else:
                low, left, one = left, right, other
                right = low + GOLDEN * (high - low)
                other = misfit(right)
        return (low + high) / 2
