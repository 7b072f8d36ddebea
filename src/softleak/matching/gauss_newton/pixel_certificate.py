"""This module decides whether a solution of the share's equations is proved.

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

from softleak.matching.gauss_newton.batch_function import BatchFunction
from softleak.matching.gauss_newton.certificate import Certificate
from softleak.matching.gauss_newton.damped_descent import Walk
from softleak.matching.gauss_newton.error_spread import Spread, spread_of
from softleak.matching.gauss_newton.look_alikes import find_look_alike
from softleak.matching.gauss_newton.other_values import EntrySearch
from softleak.matching.gauss_newton.rounding_draws import draw_errors
from softleak.matching.gauss_newton.share_equations import ShareEquations
from softleak.matching.gauss_newton.tangent_products import TangentProducts


@dataclass(frozen=True)
class ProofSettings:
    """These settings say what a proof asks for.

    Attributes:
        largest_misfit: the largest misfit of a layer, in units of the error it is expected to
            carry.
        undetermined: a direction is undetermined if its predicted error is larger than this part
            of the spread of the inputs.
        reach: as far as so many predicted errors the equations must be linear.
        bend: the largest deviation from linearity, relative to the change.
        excess: how many independent numbers there must be for each unknown.
        negative: a label may be below zero by so many of its errors.
        entries: how other values of single entries are searched for.
    """

    largest_misfit: float = 5.0
    undetermined: float = 0.1
    reach: float = 3.0
    bend: float = 0.3
    excess: float = 2.0
    negative: float = 10.0
    entries: EntrySearch = field(default_factory=EntrySearch)


@dataclass(frozen=True, eq=False)
class Certifier:
    """This decides whether the end of a walk is proved, and predicts its error.

    Attributes:
        equations: the equations, in float64.
        client: the same function in the dtype in which the client computes.
        products: products with the Jacobian, in float64.
        kept: which rows (R,) the normal matrix was made of.
        settings: what a proof asks for.
    """

    equations: ShareEquations
    client: BatchFunction
    products: TangentProducts
    kept: Tensor
    settings: ProofSettings

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
