"""Decide whether a solution of the share's equations is proved.

Four things are asked, none of which knows the truth. The gradients of the solution must differ from
the share in every layer by no more than the rounding and the noise that the layer carries. The
Jacobian must determine every entry. The equations must behave as their Jacobian says as far as the
predicted error reaches. And no shifted, mirrored or exchanged input may send the same, nor may one
with another value of an entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from softleak.matching.gauss_newton.descent import Walk
from softleak.matching.gauss_newton.equations import BatchFunction, ShareEquations
from softleak.matching.gauss_newton.model import NormalEquations
from softleak.matching.gauss_newton.products import TangentProducts
from softleak.matching.gauss_newton.rivals import EntrySearch, find_look_alike
from softleak.matching.reconstruction import Certificate

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
    Its shape is kept and its size is set by what drawn errors do, which are correlated.

    Args:
        normal: the normal equations at the solution.
        pushed: what the Jacobian makes of drawn errors, ``Jᵀe`` (K, n).
        pixels: how many of the n unknowns are pixels.
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
    equations: ShareEquations,
    client: BatchFunction,
    z: Tensor,
    count: int = 6,
    jitter: float = 1e-3,
    seed: int = 0,
) -> Tensor:
    """Return errors (count, R) that a share of these inputs may carry, in standard errors.

    The client's own arithmetic is repeated near the inputs and compared with float64: rounding
    errors of neighbouring entries are correlated, as no formula says. What a format or noise adds
    is drawn independently. Rows that are known otherwise have errors of their own size.

    Args:
        equations: the equations, in float64.
        client: the same function in the dtype in which the client computes.
        z: unknowns (n,) near the truth.
        count: how many errors are drawn.
        jitter: how far from ``z`` the arithmetic is repeated, relative to the inputs' spread, so
            that every draw rounds otherwise.
        seed: the seed of all draws.
    """
    generator = torch.Generator().manual_seed(seed)
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
    sizes = equations.function.sizes
    parts = zip(sizes, rows.split_with_sizes(list(sizes.values())), strict=True)
    return torch.cat(
        [part.to(equations.sent.get(name, torch.float64)).double() for name, part in parts]
    )


def _independent(equations: ShareEquations, least: float, generator: torch.Generator) -> Tensor:
    """Return errors (R,) that no simulation shows: noise, a coarse format, and rounding of at
    least a part of the standard error.
    """
    sizes = equations.function.sizes
    ends = torch.tensor([0, *sizes.values()]).cumsum(0).tolist()
    size = torch.zeros_like(equations.deviation)
    for name, low, high in zip(sizes, ends[:-1], ends[1:], strict=True):
        own = equations.deviation[low:high]
        said = equations.noise.get(name, 0.0) > 0 or equations.coarse.get(name, 0.0) > 0
        whole = said or name not in equations.sent  # else most of it is simulated
        size[low:high] = torch.where(own.isfinite(), own if whole else own * least, 0.0)
    return size * torch.randn(len(size), generator=generator, dtype=torch.double)


@dataclass(frozen=True)
class ProofSettings:
    """What a proof asks for."""

    largest_misfit: float = 5.0  # of a layer, in units of the error it is expected to carry
    undetermined: float = 0.1  # a direction with an error above this part of the inputs' spread is
    reach: float = 3.0  # as far as so many predicted errors the equations must be linear
    bend: float = 0.3  # the largest deviation from linearity, relative to the change
    excess: float = 2.0  # how many independent numbers there must be for each unknown
    negative: float = 10.0  # a label may be below zero by so many of its errors
    entries: EntrySearch = field(default_factory=EntrySearch)  # finds other values of an entry


@dataclass(frozen=True, eq=False)
class Certifier:
    """Decide whether the end of a walk is proved, and predict its error."""

    equations: ShareEquations  # the equations, in float64
    client: BatchFunction  # the same function in the dtype in which the client computes
    products: TangentProducts  # products with the Jacobian, in float64
    kept: Tensor  # which rows (R,) the normal matrix was made of
    settings: ProofSettings  # what a proof asks for

    def __call__(self, walk: Walk) -> Certificate:
        """Return what is proved of the end of a walk."""
        drawn = draw_errors(self.equations, self.client, walk.z)
        layers = self._layers(walk.r, drawn)
        found = Certificate(False, layers=layers, misfits=walk.misfits)
        worst = max(layers, key=lambda name: layers[name])
        if not layers[worst] <= self.settings.largest_misfit:
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
        limit = self.settings.undetermined * float(function.inputs(walk.z).std())
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
        equations, settings = self.equations, self.settings
        function, z = equations.function, walk.z
        if found.undetermined:
            return (
                f"the share does not determine {found.undetermined} of {function.pixels} "
                f"directions; along the worst the error is {found.largest_error:.2g}"
            )
        if (rows := self.products.independent_rows(z)) < settings.excess * function.unknowns:
            return (
                f"the share holds {rows} independent numbers for {function.unknowns} unknowns: "
                "other inputs may fit as well"
            )
        lowest = float(function.labels(z).min())
        if lowest < -settings.negative * max(spread.label_error, torch.finfo(torch.float32).eps):
            return f"the label that was found has a negative entry, {lowest:.2g}"
        if self._bend(walk, spread) > settings.bend:
            return "within the predicted error the equations are not what their Jacobian says"
        error = found.error if found.error is not None else torch.zeros(())
        margin = 10 * max(walk.misfits[-1], 1.0)
        if what := find_look_alike(equations, z, error, margin):
            return f"the same inputs {what} would have sent the same"
        if settings.entries(equations, z, error, margin):
            return "the same inputs with another value of one entry would have sent the same"
        return ""

    def _bend(self, walk: Walk, spread: Spread) -> float:
        """Return how far the equations are from what their normal matrix says, relative to it.

        The worst determined direction is followed, the best one, and an error of the predicted
        size. The recorded Jacobian is checked on the way, as products here are not recorded. So is
        the normal matrix, which may be that of a place some steps before the end.
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
            v[:pixels] = step * self.settings.reach
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
