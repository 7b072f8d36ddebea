"""This module replaces patches by the levels of an 8-bit image, where their pixels lie on such.

That an image has levels is an assumption, and it is tested: enough pixels must be known to a
small part of the levels' distance, all of them must lie on the levels, and the gradient computed
from the levels must leave no more than the patches left before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.inversion.patch_plan import PatchPlan
from softleak.inversion.pixel_index import OUTSIDE
from softleak.inversion.pixel_levels import LEVEL_SETTINGS, levels_of
from softleak.inversion.state import TINY

BLUR = torch.finfo(torch.float32).eps / 2  # of levels: clients normalise pixels in float32
AGREEING = 1.5  # by what factor the levels may leave more of a column than the patches did


@dataclass(frozen=True, eq=False)
class Patches:
    """These are patches (N, K) with a standard error (N,) for each."""

    X: Tensor
    error: Tensor


def on_levels(
    plan: PatchPlan,
    delta: Tensor,
    G: Tensor,
    found: Patches,
    solve: Callable[[Tensor, Tensor], Patches],
) -> Patches | None:
    """Return the patches with every pixel on a level, or None if they do not lie on levels.

    Args:
        plan: where the pixels are.
        delta: (N, d) the gradient at each patch.
        G: (d, K) the gradient of the projection.
        found: the patches as the equations tell them.
        solve: the solution of ``Δᵀ X = G`` for some of the patches.
    """
    channels = _channels(plan).to(found.X.device)
    blur = BLUR * found.X.square().mean().sqrt()
    found = Patches(found.X, found.error.hypot(blur))
    levels = _levels(channels, found)
    if levels is None:
        return None
    first, step = levels
    fixed = torch.zeros(len(found.X), dtype=torch.bool, device=found.X.device)
    number, now = torch.zeros_like(found.X), found
    while not fixed.all():
        sure = LEVEL_SETTINGS.sigmas * now.error < step.min() / 2
        if not sure.any():
            return None
        rest = (~fixed).nonzero()[sure, 0]
        place = (now.X[sure] - first[channels[rest]]) / step[channels[rest]]
        number[rest] = place.round()
        off = (place - number[rest]).abs() * step[channels[rest]]
        if bool((off > LEVEL_SETTINGS.sigmas * now.error[sure, None]).any()):
            return None
        fixed[rest] = True
        exact = (first[channels] + step[channels] * number)[fixed]
        if not fixed.all():  # what is exact now no longer blurs what is not
            now = solve(delta[~fixed], G - delta[fixed].T @ exact)
    X = _refitted(delta, G, number, channels)
    if not _agrees(delta, G, (found.X, X), blur):
        return None
    return Patches(X, blur.expand_as(found.error))


def _channels(plan: PatchPlan) -> Tensor:
    """Return the channel (N, K) of each entry of the patches; padding is one of its own."""
    size = plan.shape[-1] * plan.shape[-2] if len(plan.shape) == 3 else plan.pixels.numel()
    channels = plan.pixels // size
    return torch.where(plan.pixels == OUTSIDE, channels.max() + 1, channels)


def _levels(channels: Tensor, found: Patches) -> tuple[Tensor, Tensor] | None:
    """Return the first level and the step of each channel, by the half of patches known best."""
    best = found.error.argsort()[: (len(found.error) + 1) // 2]
    values, error = found.X[best], float(found.error[best].max())
    count = int(channels.max()) + 1
    levels = [levels_of(values[channels[best] == channel], error) for channel in range(count)]
    told = [(one.first, one.step) for one in levels if one is not None]
    if len(told) < count:
        return None
    first, step = torch.tensor(told, dtype=torch.double, device=values.device).T
    return first, step


def _refitted(delta: Tensor, G: Tensor, number: Tensor, channels: Tensor) -> Tensor:
    """Return the patches with the levels' first value and step as G (d, K) tells them."""
    own = delta.norm(dim=0).clamp_min(TINY)[:, None]
    shown = [torch.where(channels == c, 1.0, 0.0).to(G) for c in range(int(channels.max()) + 1)]
    basis = torch.stack([part for here in shown for part in (here, here * number)])
    made = (delta.T @ basis / own).flatten(1)  # (2 C, d K)
    best = torch.linalg.lstsq(made.T, (G / own).reshape(-1, 1)).solution
    X: Tensor = (best[:, :, None] * basis).sum(0)
    return X


def _agrees(delta: Tensor, G: Tensor, both: tuple[Tensor, Tensor], blur: Tensor) -> bool:
    """Return whether the gradient computed again is as near as it was before, in every column."""
    before, after = ((G - delta.T @ X).square().mean(0).sqrt() for X in both)
    spare = max(1 - len(delta) / len(G), 1 / len(G)) ** 0.5  # the fit took a part of the rounding
    expected = (before / spare).hypot(blur * delta.norm() / len(G) ** 0.5)
    return bool((after <= AGREEING * expected).all())
