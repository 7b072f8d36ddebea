"""Decide whether a solution of the share's equations is proved.

Four things are asked, none of which knows the truth. The gradients of the solution must differ from
the share in every layer by no more than the rounding and the noise that the layer carries. The
Jacobian must determine every entry. The equations must behave as their Jacobian says as far as the
predicted error reaches. And no other input may send the same: a shifted, mirrored or exchanged one,
one with another value of an entry, or one that enters the first layers alike.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jacrev

from softleak.core.forward import logits_of, watched
from softleak.matching.gauss_newton.descent import NormalEquations, Walk, root_mean_square
from softleak.matching.gauss_newton.equations import BatchEquations, BatchFunction
from softleak.matching.gauss_newton.metric import IMAGE_AXES
from softleak.matching.gauss_newton.products import TangentProducts
from softleak.matching.reconstruction import Certificate

GOLDEN = (5**0.5 - 1) / 2
AFFINE = 1e-9  # relative: a second difference below this is rounding
SOLVED = 1e-9  # relative: what an exchange may leave of what enters
ROUNDS = 8  # Newton steps towards an exchange; one if parts enter as they are
LARGEST_JACOBIAN = 1 << 25  # entries of the derivative of what enters; larger ones are not solved
MOST_PLACES = 12  # places of a layer all pairs of which are exchanged; of more, neighbours are
LADDER = 1.1  # between the distances of values that are tried for an entry
NEAREST, FARTHEST = 1e-3, 1e3  # of the inputs' range: the distances that are tried
NARROWINGS = 90  # of the interval around another value of an entry
LOWEST = 6  # the number of intervals that are narrowed for an entry

Entered = dict[str, list[Tensor]]  # what enters each first layer, call by call


@dataclass(frozen=True, eq=False)
class Rivals:
    """What enters the first layers of a network near one input (1, …)."""

    model: nn.Module  # in the mode of the client
    x: Tensor  # the input (1, …)

    def entered(self, x: Tensor, apart: bool = False) -> Entered:
        """Return what enters every layer with parameters; ``apart``: only straight from ``x``."""
        found: Entered = defaultdict(list)
        layers = {
            name: module for name, module in self.model.named_modules()
            if next(module.parameters(recurse=False), None) is not None
            and not any(module.children())
        }  # fmt: skip

        def record(name: str, given: tuple[Any, ...]) -> None:
            if given and isinstance(given[0], Tensor) and given[0].is_floating_point():
                found[name].append(given[0])

        with watched(layers, before=record, after=_detached if apart else None):
            logits = logits_of(self.model(x))
        if logits is not None:
            found["(logits)"].append(logits)
        return found

    def first(self) -> dict[str, list[int]]:
        """Return which calls of which layers see the input itself."""
        seen = self.entered(self.x.clone().requires_grad_(), apart=True)
        calls = {n: [k for k, one in enumerate(c) if one.requires_grad] for n, c in seen.items()}
        return {name: which for name, which in calls.items() if which}

    def proposals(self) -> Iterator[tuple[str, Tensor]]:
        """Yield other inputs (1, …) that may send the same, with what was done to them."""
        first = self.first()

        def parts(x: Tensor) -> list[Tensor]:
            seen = self.entered(x)
            return [part for n, which in first.items() for k in which for part in _rows(seen[n][k])]

        def response(flat: Tensor) -> Tensor:
            return torch.cat([one.flatten() for one in parts(flat.view_as(self.x))])

        names = [n for n, which in first.items() for _ in which]
        counts = [
            len(_rows(self.entered(self.x)[n][k])) for n, which in first.items() for k in which
        ]
        owners = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
        yield from _other_values(response, self.x)
        yield from _exchanges(response, parts(self.x), owners, self.x)


def _detached(_name: str, _given: tuple[Any, ...], output: object) -> object:
    return output.detach() if isinstance(output, Tensor) else output


def _rows(entered: Tensor) -> list[Tensor]:
    """Return the parts of what enters a layer that it treats alike, each on its own."""
    if entered.ndim in (2, 4, 5) or len(entered) > 1:
        return list(entered)
    return list(entered.flatten(0, -2)) if entered.ndim > 1 else [entered]


def _other_values(response: Callable[[Tensor], Tensor], x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield inputs with another value of one entry that enters as its own one does."""
    flat = x.flatten()
    here, spread = response(flat), max(float(flat.max() - flat.min()), 1e-6)
    generator = torch.Generator().manual_seed(0)
    off = torch.randn(len(flat), generator=generator, dtype=torch.double).to(flat) * spread
    if _is_affine(response, flat, here, off):
        return
    steps = int(math.log(FARTHEST / NEAREST, LADDER))
    ladder = spread * NEAREST * LADDER ** torch.arange(steps, dtype=torch.double)
    away = torch.cat([-ladder.flip(0), ladder]).tolist()
    for entry in range(len(flat)):
        step = torch.zeros_like(flat)
        step[entry] = 1.0
        if _is_affine(response, flat, here, step * spread):
            continue

        def missed(value: float, step: Tensor = step) -> float:
            return float((response(flat + value * step) - here).norm())

        sizes = [missed(value) for value in away]
        lowest = [
            k for k in range(1, len(away) - 1)
            if sizes[k] <= min(sizes[k - 1], sizes[k + 1]) and away[k - 1] * away[k + 1] > 0
        ]  # fmt: skip
        for k in sorted(lowest, key=sizes.__getitem__)[:LOWEST]:
            value = narrowed(missed, away[k - 1], away[k + 1])
            if missed(value) <= 1e-6 * max(sizes):
                yield "with another value of one entry", (flat + value * step).view_as(x)


def _is_affine(response: Callable[[Tensor], Tensor], x: Tensor, here: Tensor, off: Tensor) -> bool:
    """Return whether what enters changes along a line as a straight line does."""
    for size in (0.37, 1.0, 2.9):
        one, other = response(x + size * off), response(x - size * off)
        bent = (one + other - 2 * here).abs().max()
        if float(bent) > AFFINE * float((one - here).abs().max() + here.abs().max()):
            return False
    return True


def _exchanges(
    response: Callable[[Tensor], Tensor], parts: list[Tensor], owners: list[str], x: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield inputs of which two parts that enter the same layer change places."""
    places: dict[tuple[str, torch.Size], list[int]] = defaultdict(list)
    for k, (part, owner) in enumerate(zip(parts, owners, strict=True)):
        places[owner, part.shape].append(k)
    groups = [one for one in places.values() if len(one) > 1]
    size = sum(part.numel() for part in parts)
    if not groups or size * x.numel() > LARGEST_JACOBIAN:
        return
    flat = x.flatten()
    J = jacrev(response, chunk_size=256)(flat)
    inverse = torch.linalg.pinv(J, rtol=1e-9)
    here = torch.cat([part.flatten() for part in parts])
    for swapped in _swaps(groups):
        order = list(range(len(parts)))
        for i, j in swapped:
            order[i], order[j] = order[j], order[i]
        wanted = torch.cat([parts[k].flatten() for k in order])
        other = flat
        for _ in range(ROUNDS):
            other = other + inverse @ (wanted - response(other))
        left = (response(other) - wanted).norm()
        if float(left) <= SOLVED * float(here.norm()):
            yield "with two parts of it exchanged", other.view_as(x)


def _swaps(groups: list[list[int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield pairs of places that change at once: of one layer, or of all used as often."""
    for group in groups:
        near = pairwise(group)
        pairs = combinations(group, 2) if len(group) <= MOST_PLACES else near
        yield from ([pair] for pair in pairs)
    for count in {len(group) for group in groups}:
        alike = [group for group in groups if len(group) == count]
        if len(alike) > 1:
            for i, j in combinations(range(min(count, MOST_PLACES)), 2):
                yield [(group[i], group[j]) for group in alike]


def narrowed(misfit: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function of one number is least within an interval, by golden sections."""
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    one, other = misfit(left), misfit(right)
    for _ in range(NARROWINGS):
        if one < other:
            high, right, other = right, left, one
            left = high - GOLDEN * (high - low)
            one = misfit(left)
        else:
            low, left, one = left, right, other
            right = low + GOLDEN * (high - low)
            other = misfit(right)
    return (low + high) / 2


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


def find_look_alike(equations: BatchEquations, z: Tensor, error: Tensor, margin: float) -> str:
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


def another_value(equations: BatchEquations, z: Tensor, error: Tensor, margin: float) -> bool:
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
    equations: BatchEquations, z: Tensor, at: int, values: list[float], near: float, margin: float
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

    def below(self, limit: float) -> Spread:
        """Return the same of those directions alone along which the error is at most a limit."""
        kept = self.spectrum <= limit
        spectrum, directions = self.spectrum[kept], self.directions[:, kept]
        error = (directions.square() @ spectrum.square()).sqrt()
        return replace(self, error=error, spectrum=spectrum, directions=directions)

    def within(self, spread: float) -> Tensor:
        """Return the error (pixels,) if every direction is known beforehand to within a spread."""
        variance = 1 / (self.spectrum.square().reciprocal() + spread**-2)
        return (self.directions.square() @ variance).sqrt()


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
    equations: BatchEquations, client: BatchFunction, z: Tensor,
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


def _sent(equations: BatchEquations, rows: Tensor) -> Tensor:
    """Return rows (R,) as they arrive: gradients rounded to the dtype they were sent in."""
    parts = equations.parted(rows).items()
    return torch.cat(
        [part.to(equations.sent.get(name, torch.float64)).double() for name, part in parts]
    )


def _independent(equations: BatchEquations, least: float, generator: torch.Generator) -> Tensor:
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

    equations: BatchEquations  # the equations, in float64
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
        wide = float(function.inputs(walk.z).std())
        error, open_ = spread.error, int((spread.spectrum > UNDETERMINED * wide).sum())
        found = replace(
            found, error=error.view(function.shape), spectrum=spread.spectrum, undetermined=open_
        )
        if open_:
            error = spread.within(wide)
            spread = spread.below(UNDETERMINED * wide)
        reason = self._doubt(walk, spread, error)
        if not reason:
            found = replace(found, expected=error.view(function.shape))
        if open_:
            reason = (
                f"the share does not determine {open_} of {function.pixels} "
                f"directions; along the worst the error is {found.largest_error:.2g}"
            )
        return replace(found, proved=not reason, reason=reason)

    def _layers(self, r: Tensor, drawn: Tensor) -> dict[str, float]:
        """Return the misfit of each group of rows, relative to that of drawn errors."""
        expected = [self.equations.by_group(one) for one in drawn]
        layers = {}
        for name, size in self.equations.by_group(r).items():
            usual = (sum(one[name] ** 2 for one in expected) / len(expected)) ** 0.5
            layers[name] = size / usual if usual > 0 else float("inf")
        return layers

    def _doubt(self, walk: Walk, spread: Spread, error: Tensor) -> str:
        """Return why a solution that explains the share may be another one, or nothing.

        The ``spread`` is that of the determined directions, the ``error`` (pixels,) that of all.
        """
        equations, function, z = self.equations, self.equations.function, walk.z
        if not len(spread.spectrum):
            return "the share determines no direction"
        if (rows := self._independent_rows(z)) < EXCESS * function.unknowns:
            return (
                f"the share holds {rows} independent numbers for {function.unknowns} unknowns: "
                "other inputs may fit as well"
            )
        lowest = float(function.labels(z).min())
        entries = function.model.minimised.least  # negative ones only where the loss takes them
        if entries == 0 and lowest < -MOST_NEGATIVE * max(
            spread.label_error, torch.finfo(torch.float32).eps
        ):
            return f"the label that was found has a negative entry, {lowest:.2g}"
        if self._bend(walk, spread) > LARGEST_BEND:
            return "within the predicted error the equations are not what their Jacobian says"
        error = error.view(function.shape)
        margin = 10 * max(walk.misfits[-1], 1.0)
        if what := find_look_alike(equations, z, error, margin):
            return f"the same inputs {what} would have sent the same"
        if another_value(equations, z, error, margin):
            return "the same inputs with another value of one entry would have sent the same"
        return ""

    def _independent_rows(self, z: Tensor) -> int:
        """Return how many numbers the share holds at most that do not follow from each other.

        A zero is none: it comes from units that are off.
        """
        counts, head = self.products.independent_rows(z), self.equations.function.model.head
        if head.weight_name in counts:  # the gradient of the head's bias is a factor of it
            counts.pop(head.bias_name, None)
        parts = self.equations.parted(self.equations.function.rows(z).detach())
        return sum(min(n, int(parts[name].count_nonzero())) for name, n in counts.items())

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
