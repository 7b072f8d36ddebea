"""This module computes an image from the gradients of positions and of the patch projection.

With the gradient ``Δ`` (N, d) of the positions the patches ``X`` (N, K) solve ``Δᵀ X = ∂L/∂W``:
d equations for the N unknowns of each column. Neither the label nor the scale of the share enters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.errors import ShareError
from softleak.inversion.patch_levels import Patches, on_levels
from softleak.inversion.patch_plan import PatchPlan
from softleak.inversion.patch_weights import Weighed, running_sums, unweighed, weighed
from softleak.inversion.pixel_index import OUTSIDE
from softleak.inversion.state import TINY
from softleak.inversion.step import LayerReport
from softleak.inversion.walk import Inversion
from softleak.share import GradientShare


@dataclass(frozen=True)
class PatchSettings:
    """These settings say what is expected of pixels and of rounding.

    Attributes:
        typical: the usual size of an entry of the input. Directions that the equations leave open
            are expected to be of this size, and answered by zero.
        growth: the rounding of a sum, in units of that of its terms added as independent ones.
        known: the part of a direction that the equations have to tell for it to be determined.
        resolved: by what factor X has to exceed its noise along a direction to show its size.
        fewest: the number of such directions that show how X falls with the singular values.
        surprise: by how many standard errors the size that is seen has to exceed noise for it to
            be believed against how X falls.
    """

    typical: float = 1.0
    growth: float = 2.0
    known: float = 0.99
    resolved: float = 3.0
    fewest: int = 8
    surprise: float = 6.0


PATCH_SETTINGS = PatchSettings()
LEVELLED = (
    "their pixels lie on evenly spaced levels, as those of an 8-bit image, and were taken to be "
    "exactly these: the gradient computed from them agrees with the one that was sent"
)


def invert_patches(plan: PatchPlan, share: GradientShare, pixel: Tensor | float = 1.0) -> Inversion:
    """Return the image behind a share, the predicted error of each pixel, and what is open.

    Args:
        plan: where the model's gradients tell the patches.
        share: what the client sent; noise that it is known to carry is taken into account.
        pixel: the standard deviation that inputs were divided by.

    Raises:
        ShareError: if the share lacks one of the two gradients.
    """
    for name in (plan.weight, plan.positions):
        if name not in share:
            raise ShareError(
                f"the share lacks {name!r}, without which the patches are not told apart; use "
                "softleak.reconstruct (gradient matching) instead"
            )
    delta, G = plan.read(share)
    solved = _solve(delta, G, plan, share)
    if not solved.open and not solved.noisy:
        solved = _levelled(solved, delta, G, plan, share)
    value, error = _gathered(solved.X, solved.error, plan)
    worth = torch.as_tensor(pixel, dtype=torch.double, device=value.device)
    report = LayerReport(
        plan.weight.rpartition(".")[0], G.numel(), plan.pixels.numel(), solved.condition,
        solved.residual, solved.open == 0,
    )  # fmt: skip
    return Inversion(value, error, (report,), worth, _said(plan, solved, delta.shape[1]))


@dataclass(frozen=True, eq=False)
class _Solved:
    """The patches (N, K) with their errors, and how well the equations told them."""

    X: Tensor
    error: Tensor
    condition: float
    residual: float
    open: int  # directions, of N, that the equations do not tell
    noisy: bool  # whether the share carries more than the rounding of its sums
    levelled: bool = False  # whether every pixel was found to lie on the levels of an 8-bit image


def _solve(delta: Tensor, G: Tensor, plan: PatchPlan, share: GradientShare) -> _Solved:
    """Solve ``Δᵀ X = G``, with each row in units of its expected error, then weigh its entries.

    Where Δ carries noise too, what the noise adds to ΔΔᵀ is taken off again.
    """
    patches = len(delta)
    own, noise = _row_errors(delta, G, plan, share)
    A, b = delta.T / own[:, None], G / own[:, None]
    U, S, V = torch.linalg.svd(A, full_matrices=False)
    signal = (S.square() - (noise / own).square().sum()).clamp_min(0)
    told = unweighed(U, b)
    along, spread = _shrunk(S, signal, told, patches)
    noisy = bool(noise.any()) or share.noise(plan.weight) > 0
    if not noisy:
        sums = running_sums(delta, V.T @ along) / own[:, None].square()
        told = weighed(U, b, sums)
        along, spread = _shrunk(S, signal, told, patches)
    X = V.T @ along
    variance = (V.T.square() * spread).sum(1)
    known = signal / (signal + PATCH_SETTINGS.typical**-2) >= PATCH_SETTINGS.known
    missing = patches - int(known.sum())
    outside = (1 - V.square().sum(0)).clamp_min(0) * PATCH_SETTINGS.typical**2
    error = (variance + (outside if missing else 0)).sqrt()[:, None].expand_as(X)
    return _Solved(X, error, float(S[0] / S[-1].clamp_min(TINY)), told.residual, missing, noisy)


def _levelled(
    solved: _Solved, delta: Tensor, G: Tensor, plan: PatchPlan, share: GradientShare
) -> _Solved:
    """Return the patches on the levels of an 8-bit image if they lie on such, else as they are."""

    def again(some: Tensor, rest: Tensor) -> Patches:
        part = _solve(some, rest, plan, share)
        return Patches(part.X, part.error[:, 0])

    found = on_levels(plan, delta, G, Patches(solved.X, solved.error[:, 0]), again)
    if found is None:
        return solved
    return replace(solved, X=found.X, error=found.error[:, None].expand_as(found.X), levelled=True)


def _shrunk(S: Tensor, signal: Tensor, told: Weighed, patches: int) -> tuple[Tensor, Tensor]:
    """Return X along each singular direction (r, K), and the variance (r,) that is left.

    Patches with nearly the same gradient are nearly the same. Their difference is a direction in
    which noise is large and X is small: it is drawn to zero as far as the columns of X show, by
    the mean of their squares less that of noise, and as far as X was seen to fall with the
    singular values before noise hid it.
    """
    known = signal > 0
    factor = torch.where(known, S / signal.clamp_min(TINY), 0.0)
    along = factor[:, None] * told.seen
    noise = told.variance * factor.square()
    largest = patches * PATCH_SETTINGS.typical**2
    observed = along.square().mean(1) - noise
    doubt = noise * math.sqrt(2 / told.seen.shape[1])  # no mean of so few squares is known better
    size = torch.maximum(observed, doubt)
    if torch.equal(signal, S.square()):  # with noise on Δ, small singular values are noise as well
        hidden = observed < PATCH_SETTINGS.surprise * doubt
        size = torch.where(hidden, size.minimum(_falling(S, observed, noise)), size)
    size = size.clamp(TINY, largest)
    kept = size / (size + noise).clamp_min(TINY)
    left = torch.where(known, kept * noise, PATCH_SETTINGS.typical**2)
    return kept[:, None] * along, left


def _falling(S: Tensor, observed: Tensor, noise: Tensor) -> Tensor:
    """Return the mean square (r,) of X along each direction, as those that are resolved show it.

    Where equal patches have equal gradients, as without positions, X falls like the singular
    values. Where a patch has a small gradient because the model hardly looks at it, X does not
    fall. A power of S that bounds the last quarter of the resolved directions tells which.
    """
    clear = (observed > PATCH_SETTINGS.resolved**2 * noise).nonzero()[:, 0]
    last = clear[-max(len(clear) // 4, PATCH_SETTINGS.fewest) :]
    if len(last) < PATCH_SETTINGS.fewest:
        return torch.full_like(S, math.inf)
    x, y = S[last].log(), observed[last].log()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum().clamp_min(TINY)
    slope = slope.clamp(0, 2)
    bound = (y - slope * x).amax()
    return (bound + slope * S.clamp_min(TINY).log()).exp()


def _row_errors(
    delta: Tensor, G: Tensor, plan: PatchPlan, share: GradientShare
) -> tuple[Tensor, Tensor]:
    """Return the expected error (d,) of each row of ``ΔᵀX = G``, and the noise (d,) on Δ."""
    computed = share[plan.weight].dtype
    typical = PATCH_SETTINGS.typical
    rounding = PATCH_SETTINGS.growth * torch.finfo(computed).eps * typical * delta.norm(dim=0)
    coarse = share.resolution(plan.positions, computed)
    sent = coarse if coarse > torch.finfo(computed).eps else 0.0
    if computed in (torch.float16, torch.bfloat16):  # the client computes in float32 and rounds
        sent = coarse
    sizes = delta.square().mean(0).sqrt()
    noise = (sizes * sent + share.noise(plan.positions)).to(G)
    made = noise * typical * math.sqrt(len(delta))
    own = rounding.hypot(made) + share.noise(plan.weight)
    return own.clamp_min(float(own.max()) * 1e-12 + TINY), noise


def _gathered(X: Tensor, error: Tensor, plan: PatchPlan) -> tuple[Tensor, Tensor]:
    """Return the image and its error; pixels that several patches show are averaged."""
    pixels = plan.pixels.to(X.device).flatten()
    shown = pixels != OUTSIDE
    pixels, value, weight = pixels[shown], X.flatten()[shown], error.flatten()[shown]
    weight = weight.square().clamp_min(TINY).reciprocal()
    size = math.prod(plan.shape)
    total = weight.new_zeros(size).index_add(0, pixels, weight)
    mean = weight.new_zeros(size).index_add(0, pixels, weight * value) / total
    return mean.reshape(plan.shape), total.rsqrt().reshape(plan.shape)


def _said(plan: PatchPlan, solved: _Solved, width: int) -> str:
    count = len(plan.pixels)
    if not solved.open:
        all_ = f"the gradients of {plan.positions} and {plan.weight} determine all {count} patches"
        return f"{all_}; {LEVELLED}" if solved.levelled else all_
    why = (
        f"there are {count} patches and only {width} equations for each of their entries"
        if count > width
        else "rounding or noise hides them"
    )
    return (
        f"the gradients of {plan.positions} and {plan.weight} leave {solved.open} of {count} "
        f"directions of the patches open: {why}; the other layers may tell more, as "
        "reconstruct(…, optimiser=GaussNewton(), start=Image(inv.input)) finds out"
    )
