"""Decide whether a solution of the share's equations is proved.

Four things are asked, none of which knows the truth. The gradients of the solution must differ from
the share in every layer by no more than the rounding and the noise that the layer carries. The
Jacobian must determine every entry. The equations must behave as their Jacobian says as far as the
predicted error reaches. And no shifted, mirrored or exchanged input may send the same, nor may one
with another value of an entry, which functions such as ``x exp(−x)`` cannot tell from its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn

from softleak.matching.gauss_newton.descent import Walk, root_mean_square
from softleak.matching.gauss_newton.equations import BatchFunction, ShareEquations
from softleak.matching.gauss_newton.model import IMAGE_AXES, NormalEquations
from softleak.matching.gauss_newton.products import TangentProducts
from softleak.matching.gauss_newton.rivals import Rivals, narrowed
from softleak.matching.reconstruction import Certificate


def changed_inputs(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield inputs (B, …) that a network may take for the same, with what was done to them."""
    yield from _with_other_signs(x)
    for axis in range(1, x.ndim):
        if x.shape[axis] > 1:
            yield "mirrored", x.flip(axis)
        for shift in range(1, x.shape[axis]):
            yield "shifted", x.roll(shift, axis)
    if x.ndim >= IMAGE_AXES:
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
    if len(shape) < IMAGE_AXES - 1:
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
    size = block[axis]
    rest = x.shape[axis + 1] - size
    off = (x.narrow(axis + 1, size, rest) - x.narrow(axis + 1, 0, rest)).square().sum(0)
    for dim, step in enumerate(block):
        off = off.unfold(dim, step, step).sum(-1)
    best = torch.unravel_index(off.argmax(), off.shape)
    places = zip(map(int, best), block, strict=True)
    return tuple(slice(at * step, at * step + step) for at, step in places)


def find_look_alike(equations: ShareEquations, z: Tensor, error: Tensor, margin: float) -> str:
    """Return what could be done to the inputs without changing what they send, or nothing.

    Other inputs, further off than the standard ``error`` of each entry, send the same if their
    misfit is below ``margin``.
    """
    function = equations.function
    x, y = function.inputs(z), function.labels(z)
    for what, other in _rivals(function.model.model, x):
        far = bool(((other - x).abs() > 10 * error).any())
        if far and _sends_the_same(function, z, function.pack(other, y)):
            return what
    for what, other in changed_inputs(x):
        if not bool(((other - x).abs() > 10 * error).any()):
            continue
        if root_mean_square(equations.residual(function.pack(other, y))) < margin:
            return what
    return ""


SENDS_THE_SAME = 1e-7  # relative: two gradients of inputs that enter alike, but for their rounding


def _sends_the_same(function: BatchFunction, z: Tensor, other: Tensor) -> bool:
    """Return whether two sets of unknowns (n,) have the same gradients in float64."""
    count = sum(function.sizes[name] for name in function.names)
    with torch.no_grad():
        one, two = function.rows(z)[:count], function.rows(other)[:count]
    return bool((one - two).norm() <= SENDS_THE_SAME * one.norm())


def _rivals(model: nn.Module, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield inputs (B, …) of which one sample is another that enters the first layers alike."""
    for i in range(len(x)):
        for what, other in Rivals(model, x[i : i + 1]).proposals():
            changed = x.clone()
            changed[i] = other[0]
            yield what, changed


ENTRIES = 7  # entries of which other values are tried, from the smallest to the largest
POINTS = 96  # values of an entry that are tried near those of the input, and far away
BEYOND = 32.0  # how far values reach beyond those of the input, at least by its range


def another_value(equations: ShareEquations, z: Tensor, error: Tensor, margin: float) -> bool:
    """Return whether another value of an entry explains the share, as ``find_look_alike``."""
    flat = z[: equations.function.pixels]
    order = flat.argsort().tolist()
    places = torch.linspace(0, len(order) - 1, ENTRIES).round().long().tolist()
    low, high = float(flat.min()), float(flat.max())
    span = high - low
    near = torch.linspace(low - span, high + span, POINTS).tolist()
    reach = max(BEYOND, span)
    values = sorted(near + torch.linspace(low - reach, high + reach, POINTS).tolist())
    return any(
        _explains(equations, z, at, values, 10 * float(error.flatten()[at]), margin)
        for at in dict.fromkeys(order[place] for place in places)
    )


def _explains(
    equations: ShareEquations, z: Tensor, at: int, values: list[float], near: float, margin: float
) -> bool:
    """Return whether a value that is not near the entry's own one leaves no misfit."""

    def misfit(value: float) -> float:
        changed = z.clone()
        changed[at] = value
        size = root_mean_square(equations.residual(changed))
        return size if math.isfinite(size) else math.inf

    own, sizes = float(z[at]), [misfit(value) for value in values]
    for k in range(1, len(values) - 1):
        lowest = sizes[k] <= min(sizes[k - 1], sizes[k + 1])
        if lowest and not values[k - 1] <= own <= values[k + 1]:
            value = narrowed(misfit, values[k - 1], values[k + 1])
            if misfit(value) < margin and abs(value - own) > near:
                return True
    return False


BLIND = 1e-9  # the part of an entry in directions of which nothing is known, beyond rounding


@dataclass(frozen=True, eq=False)
class Spread:
    """How errors of the share move the inputs."""

    error: Tensor  # the standard error of each pixel, (pixels,); infinite if it is not determined
    spectrum: Tensor  # along the principal directions, increasing; infinite where nothing is known
    directions: Tensor  # the principal directions (pixels, pixels), in columns, in the same order
    label_error: float  # the largest standard error of a label's entry


def spread_of(normal: NormalEquations, pushed: Tensor, pixels: int) -> Spread:
    """Return how errors move the inputs, with the labels left free.

    The covariance of independent errors of one standard error is the inverse of the normal matrix.
    Its shape is kept and its size is set by what drawn errors do, which are correlated: the
    Jacobian makes ``Jᵀe`` (K, n) of them. The first unknowns are ``pixels``.
    """
    h, rest = normal.matrix, normal.matrix[pixels:, pixels:]
    across = torch.linalg.solve(rest, h[pixels:, :pixels])
    own = h[:pixels, :pixels] - h[:pixels, pixels:] @ across
    values, vectors = torch.linalg.eigh((own + own.T) / 2)
    values, vectors = values.flip(0), vectors.flip(1)
    # Below its own rounding an eigenvalue is zero: nothing is known along that direction.
    known = values > float(values[0]) * pixels * torch.finfo(torch.double).eps
    slope = pushed[:, :pixels] - pushed[:, pixels:] @ across
    variance = torch.where(known, 1 / values, 0.0)
    moved = (slope @ vectors) * variance
    size = (moved.square().mean(0).sum() / variance.sum()).sqrt()
    lost = (vectors[:, ~known].square().sum(1) > BLIND).to(values)
    error = torch.where(lost > 0, torch.inf, (vectors.square() @ variance).sqrt() * size)
    spectrum = torch.where(known, variance.sqrt() * size, torch.inf)
    labels = (pushed[:, pixels:] - moved @ vectors.T @ h[:pixels, pixels:]) @ torch.linalg.inv(rest)
    return Spread(error, spectrum, vectors, float(labels.square().mean(0).max().sqrt()))


def draw_errors(
    equations: ShareEquations, client: BatchFunction, z: Tensor,
    count: int = 6, jitter: float = 1e-3,
) -> Tensor:  # fmt: skip
    """Return errors (count, R) that a share of these inputs may carry, in standard errors.

    The client's own arithmetic is repeated near the inputs and compared with float64: rounding
    errors of neighbouring entries are correlated, as no formula says. What a format or noise adds
    is drawn independently. Rows that are known otherwise have errors of their own size.

    Every draw rounds otherwise, because it is made off ``z`` (n,), which is near the truth, by the
    part ``jitter`` of the inputs' spread.
    """
    generator = torch.Generator().manual_seed(0)
    exact, dtype = equations.function, client.model.like.dtype
    spread = float(z[: exact.pixels].std())
    drawn = []
    for _ in range(count):
        off = torch.randn(exact.pixels, generator=generator, dtype=torch.double) * spread * jitter
        near = z.clone()
        near[: exact.pixels] += off
        near = near.to(dtype)
        with torch.no_grad():
            error = _sent(equations, client.rows(near)) - exact.rows(near.double())
        # What is computed in float64 cannot be compared with anything finer.
        simulated = 0.5 if dtype is not torch.float64 else 4.0
        drawn.append((error + _independent(equations, simulated, generator)) * equations.weight)
    return torch.stack(drawn)


def _sent(equations: ShareEquations, rows: Tensor) -> Tensor:
    """Return rows (R,) as they arrive: gradients rounded to the dtype they were sent in."""
    parts = equations.parted(rows).items()
    return torch.cat(
        [part.to(equations.sent.get(name, torch.float64)).double() for name, part in parts]
    )


def _independent(equations: ShareEquations, least: float, generator: torch.Generator) -> Tensor:
    """Return errors (R,) that no simulation shows: noise, formats, and a ``least`` of rounding."""
    unseen = [
        own if name not in equations.sent or name in equations.unseen
        else own * least  # most of it is simulated
        for name, own in equations.parted(equations.deviation).items()
    ]  # fmt: skip
    size = torch.cat(unseen)
    size = torch.where(size.isfinite(), size, 0.0)
    return size * torch.randn(len(size), generator=generator, dtype=torch.double)


# What a proof asks for:
LARGEST_MISFIT = 5.0  # of a layer, in units of the error it is expected to carry
UNDETERMINED = 0.1  # the error of a direction that counts as such, in inputs' spreads
REACH = 3.0  # as far as so many predicted errors the equations must be linear
LARGEST_BEND = 0.3  # the largest deviation from linearity, relative to the change
EXCESS = 2.0  # how many independent numbers there must be for each unknown
MOST_NEGATIVE = 10.0  # a label may be below zero by so many of its errors


@dataclass(frozen=True, eq=False)
class Certifier:
    """Decide whether the end of a walk is proved, and predict its error."""

    equations: ShareEquations  # the equations, in float64
    client: BatchFunction  # the same function in the dtype in which the client computes
    products: TangentProducts  # products with the Jacobian, in float64
    kept: Tensor  # which rows (R,) the normal matrix was made of

    def __call__(self, walk: Walk) -> Certificate:
        """Return what is proved of the end of a walk."""
        drawn = draw_errors(self.equations, self.client, walk.z)
        layers = self._layers(walk.r, drawn)
        found = Certificate(False, layers=layers, misfits=walk.misfits)
        worst = max(layers, key=layers.__getitem__)
        if not layers[worst] <= LARGEST_MISFIT:
            times = f"{layers[worst]:.3g} times the error that it is expected to carry"
            return replace(found, reason=f"the gradient of the image misses {worst} by {times}")
        found = replace(found, explained=True)
        if walk.normal is None:
            return replace(found, reason="the search ended before its errors could be computed")
        function = self.equations.function
        back = self.products.against(walk.z)
        weight = self.equations.weight * self.kept
        pushed = torch.stack([back(e * weight) for e in drawn])
        spread = spread_of(walk.normal, pushed, function.pixels)
        limit = UNDETERMINED * float(function.inputs(walk.z).std())
        found = replace(
            found,
            error=spread.error.view(function.shape),
            spectrum=spread.spectrum,
            undetermined=int((spread.spectrum > limit).sum()),
        )
        reason = self._doubt(walk, spread, found)
        return replace(found, proved=not reason, reason=reason)

    def _layers(self, r: Tensor, drawn: Tensor) -> dict[str, float]:
        """Return the misfit of each group of rows, relative to that of drawn errors."""
        expected = [self.equations.by_group(one) for one in drawn]
        layers = {}
        for name, size in self.equations.by_group(r).items():
            usual = (sum(one[name] ** 2 for one in expected) / len(expected)) ** 0.5
            layers[name] = size / usual if usual > 0 else float("inf")
        return layers

    def _doubt(self, walk: Walk, spread: Spread, found: Certificate) -> str:
        """Return why a solution that explains the share is nevertheless not proved, or nothing."""
        equations, function, z = self.equations, self.equations.function, walk.z
        if found.undetermined:
            return (
                f"the share does not determine {found.undetermined} of {function.pixels} "
                f"directions; along the worst the error is {found.largest_error:.2g}"
            )
        if (rows := self.products.independent_rows(z)) < EXCESS * function.unknowns:
            return (
                f"the share holds {rows} independent numbers for {function.unknowns} unknowns: "
                "other inputs may fit as well"
            )
        lowest = float(function.labels(z).min())
        if lowest < -MOST_NEGATIVE * max(spread.label_error, torch.finfo(torch.float32).eps):
            return f"the label that was found has a negative entry, {lowest:.2g}"
        if self._bend(walk, spread) > LARGEST_BEND:
            return "within the predicted error the equations are not what their Jacobian says"
        error = found.error if found.error is not None else torch.zeros(())
        margin = 10 * max(walk.misfits[-1], 1.0)
        if what := find_look_alike(equations, z, error, margin):
            return f"the same inputs {what} would have sent the same"
        if another_value(equations, z, error, margin):
            return "the same inputs with another value of one entry would have sent the same"
        return ""

    def _bend(self, walk: Walk, spread: Spread) -> float:
        """Return how far the equations are from what their normal matrix says, relative to it.

        The worst determined direction is followed, the best one, and an error of the predicted
        size. That checks the recorded Jacobian, as products here are not recorded, and the normal
        matrix, which may be that of some steps before the end.
        """
        equations, pixels, z = self.equations, self.equations.function.pixels, walk.z
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(pixels, generator=generator, dtype=torch.double) * spread.error
        least = 1e-6 * float(z[:pixels].std())
        worst = 0.0
        for step in (
            spread.directions[:, -1] * max(float(spread.spectrum[-1]), least),
            spread.directions[:, 0] * max(float(spread.spectrum[0]), least),
            noise * max(1.0, least / float(noise.std())),
        ):
            v = torch.zeros_like(z)
            v[:pixels] = step * REACH
            with torch.no_grad():
                change = (equations.function.rows(z + v) - equations.function.rows(z - v)) / 2
                one_way = equations.function.rows(z + v) - equations.function.rows(z)
                line = self.products.along(z, v)
            size = float((line * equations.weight).norm())
            for moved in (change, one_way):
                off = float(((moved - line) * equations.weight).norm())
                worst = max(worst, off / size if size > 0 else float("inf"))
            if walk.normal is not None:
                used = float((line * equations.weight * self.kept).square().sum())
                told = float(v @ walk.normal.matrix @ v)
                worst = max(worst, abs(told / used - 1) if used > 0 else float("inf"))
        return worst
