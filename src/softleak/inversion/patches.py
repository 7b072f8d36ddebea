"""An image, computed from the gradients of positions and of the patch projection.

With the gradient ``Δ`` (N, d) of the positions the patches ``X`` (N, K) solve ``Δᵀ X = ∂L/∂W``:
d equations for the N unknowns of each column. Neither the label nor the scale of the share enters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from softleak.core.errors import ShareError
from softleak.core.share import GradientShare
from softleak.inversion.patch_plan import OUTSIDE, PatchPlan
from softleak.inversion.state import LayerReport
from softleak.inversion.walk import Inversion
from softleak.numerics.least_squares import TINY, conjugate_gradients

FEWEST_VALUES = 16  # fewer values in a channel could be evenly spaced by chance
MOST_LEVELS = 256  # of a channel
SIGMAS = 8.0  # standard errors that a pixel may be off its level
BLUR = torch.finfo(torch.float32).eps / 2  # of levels: clients normalise pixels in float32
AGREEING = 1.5  # by what factor the levels may leave more of a column than the patches did


class Levels(NamedTuple):
    """The evenly spaced values ``first + k · step`` of a channel, from the lowest that was seen."""

    first: float
    step: float


def levels_of(values: Tensor, error: float) -> Levels | None:
    """Return the levels on which all values (n,) of a channel lie, or None if they lie on none.

    ``error`` is the largest of their standard errors.
    """
    slack = SIGMAS * error
    ordered = values.double().sort().values
    apart = ordered.diff() > 2 * slack  # pixels of one level are nearer, of two levels farther
    group = torch.cat([apart.new_zeros(1), apart]).cumsum(0)
    count = group.bincount().double()
    if not FEWEST_VALUES <= len(count) <= MOST_LEVELS:
        return None
    means = count.new_zeros(len(count)).index_add(0, group, ordered) / count
    gaps = means.diff()
    near = gaps[gaps < 1.3 * gaps.min()].mean()
    fits = (_fit(ordered, group, (gaps / near * parts).round()) for parts in (1, 2, 3))
    return next((levels for levels, off in fits if off <= slack < levels.step / 4), None)


def _fit(values: Tensor, group: Tensor, gaps: Tensor) -> tuple[Levels, float]:
    """Return the levels nearest to values whose groups are ``gaps`` steps apart, and how near."""
    number = torch.cat([gaps.new_zeros(1), gaps.cumsum(0)])
    if int(number[-1]) >= MOST_LEVELS:
        return Levels(0.0, 0.0), math.inf
    x = number[group] - number[group].mean()
    step = (x * values).sum() / x.square().sum()
    first = values.mean() - step * number[group].mean()
    off = (values - (first + step * number[group])).abs().max()
    return Levels(float(first), float(step)), float(off)


@dataclass(frozen=True, eq=False)
class Patches:
    """Patches (N, K) with a standard error (N,) for each."""

    X: Tensor
    error: Tensor


def on_levels(
    plan: PatchPlan, delta: Tensor, G: Tensor, found: Patches,
    solve: Callable[[Tensor, Tensor], Patches],
) -> Patches | None:  # fmt: skip
    """Return the patches with every pixel on a level, or None if they do not lie on levels.

    ``delta`` (N, d) is the gradient at each patch, ``G`` (d, K) that of the projection; ``solve``
    solves ``Δᵀ X = G`` for some of the patches.
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
        sure = SIGMAS * now.error < step.min() / 2
        if not sure.any():
            return None
        rest = (~fixed).nonzero()[sure, 0]
        place = (now.X[sure] - first[channels[rest]]) / step[channels[rest]]
        number[rest] = place.round()
        off = (place - number[rest]).abs() * step[channels[rest]]
        if bool((off > SIGMAS * now.error[sure, None]).any()):
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


# How equations are weighed.
SUMS = 16  # evenly spaced over the patches, that stand for all
VARIANCE_FLOOR = 0.03  # the smallest variance of an entry, in units of the mean of its row
MOST_STEPS = 40  # of the weighted least squares
CONVERGED = 1e-4  # the squared error of these, per unknown, in standard errors
COLUMNS = 32  # whose variance stands for that of all
SPARE_EQUATIONS = 8  # beyond the unknowns, that show how large errors are


@dataclass(frozen=True, eq=False)
class PatchFit:
    """The least-squares solution of ``U z = b``."""

    seen: Tensor  # (r, K) the solution z
    variance: Tensor  # (r,) of an entry in each row of z, as a mean over the columns
    residual: float  # what the equations leave, in units of their expected error


def unweighed(U: Tensor, b: Tensor) -> PatchFit:
    """Solve ``U z = b``, U (d, r) with orthonormal columns, all errors of b (d, K) alike."""
    seen = U.T @ b
    spare = len(U) - U.shape[1]
    left = float((b - U @ seen).square().sum()) / max(spare * b.shape[1], 1)
    residual = left**0.5 if spare else 1.0
    # Rounding is only bounded beforehand; what the equations leave shows how large it really was.
    scale = residual if spare > 1 else 1.0
    return PatchFit(seen, U.new_full((U.shape[1],), scale**2), residual)


def weighed(U: Tensor, b: Tensor, running: Tensor) -> PatchFit:
    """Solve ``U z = b`` again, each entry of b weighed by the variance that describes it.

    U (d, r) has orthonormal columns, b (d, K) is in units of its rows' expected errors, and
    ``running`` (d, K) is the mean square of the sums behind each entry of b, in any unit.
    """
    first = unweighed(U, b)
    if len(U) - U.shape[1] < SPARE_EQUATIONS:
        return first
    rest = b - U @ first.seen
    shown = (1 - U.square().sum(1, keepdim=True)).clamp_min(1 / len(U))
    by_row = (rest.square().mean(1, keepdim=True) / shown).expand_as(rest)
    by_sum = running + VARIANCE_FLOOR * running.mean(1, keepdim=True)
    fits = [_fitted(U, b, first, variance + TINY) for variance in (by_row, by_sum)]
    return max(fits, key=lambda fit: fit[0])[1]


def _fitted(U: Tensor, b: Tensor, first: PatchFit, variance: Tensor) -> tuple[float, PatchFit]:
    """Return the solution under a variance (d, K) of b, and the log-likelihood of what it leaves.

    The likelihood is that of an entry, restricted to what no z can explain.
    """
    weight = variance.mean() / variance
    z = first.seen + _solved(U, weight, U.T @ (weight * (b - U @ first.seen)))
    spare = len(U) - U.shape[1]
    left = float((weight * (b - U @ z).square()).sum()) / (spare * b.shape[1])
    inverse, volume = _inverses(U, weight)
    likelihood = (float(weight.log().mean()) * len(U) - volume - spare * math.log(left)) / 2
    return likelihood, PatchFit(z, left * inverse, first.residual)


def running_sums(delta: Tensor, X: Tensor) -> Tensor:
    """Return the mean square (d, K) of the sums on the way to ``ΔᵀX``, from first patch to last."""
    step = -(-len(delta) // SUMS)
    total = squares = X.new_zeros(delta.shape[1], X.shape[1])
    pairs = zip(torch.split(delta, step), torch.split(X, step), strict=True)
    for part, patches in pairs:
        total = total + part.T @ patches
        squares = squares + total.square()
    return squares


def _solved(U: Tensor, weight: Tensor, right: Tensor) -> Tensor:
    """Solve ``Uᵀ (w ∘ (U z)) = right`` for z (r, K)."""
    size = right.shape
    diagonal = (U.square().T @ weight).flatten()
    tolerance = CONVERGED * right.numel()
    found = conjugate_gradients(
        lambda z: (U.T @ (weight * (U @ z.view(size)))).flatten(), right.flatten(),
        lambda z: z / diagonal, MOST_STEPS, tolerance,
    )  # fmt: skip
    return found.view(size)


def _inverses(U: Tensor, weight: Tensor) -> tuple[Tensor, float]:
    """Return the diagonal (r,) and the log of 1/determinant of ``(Uᵀ w_k U)⁻¹``, means over k."""
    chosen = weight.T[:: -(-weight.shape[1] // COLUMNS)]
    factors = [torch.linalg.cholesky(U.T @ (w[:, None] * U)) for w in chosen]
    diagonals = [torch.cholesky_inverse(factor).diagonal() for factor in factors]
    volumes = [2 * factor.diagonal().log().sum() for factor in factors]
    return torch.stack(diagonals).mean(0), float(torch.stack(volumes).mean())


TYPICAL = 1.0  # the usual size of an input's entry, expected of directions that are left open
GROWTH = 2.0  # the rounding of a sum, in units of that of its terms added as independent ones
KNOWN = 0.99  # the part of a direction that the equations have to tell for it to be determined
RESOLVED = 3.0  # by what factor X exceeds its noise along a direction that shows its size
FEWEST_DIRECTIONS = 8  # resolved ones that show how X falls with the singular values
SURPRISE = 6.0  # standard errors over noise from which on a size is believed against that fall
LEVELLED = (
    "their pixels lie on evenly spaced levels, as those of an 8-bit image, and were taken to be "
    "exactly these: the gradient computed from them agrees with the one that was sent"
)


def invert_patches(plan: PatchPlan, share: GradientShare, pixel: Tensor | float = 1.0) -> Inversion:
    """Return the image behind a share, the predicted error of each pixel, and what is open.

    Noise that the share is known to carry is taken into account. ``pixel`` is the standard
    deviation that inputs were divided by.

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
    value, error = _gathered(solved, plan)
    worth = torch.as_tensor(pixel, dtype=torch.double, device=value.device)
    report = LayerReport(
        plan.weight.rpartition(".")[0], G.numel(), plan.pixels.numel(), solved.condition,
        solved.residual, solved.open == 0,
    )  # fmt: skip
    return Inversion(value, error, (report,), worth, _said(plan, solved, delta.shape[1]))


@dataclass(frozen=True, eq=False)
class _Solved(Patches):
    """How well the equations told the patches, beside these and their errors."""

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
    known = signal / (signal + TYPICAL**-2) >= KNOWN
    missing = patches - int(known.sum())
    outside = (1 - V.square().sum(0)).clamp_min(0) * TYPICAL**2
    error = (variance + (outside if missing else 0)).sqrt()
    return _Solved(X, error, float(S[0] / S[-1].clamp_min(TINY)), told.residual, missing, noisy)


def _levelled(
    solved: _Solved, delta: Tensor, G: Tensor, plan: PatchPlan, share: GradientShare
) -> _Solved:
    """Return the patches on the levels of an 8-bit image if they lie on such, else as they are."""

    found = on_levels(plan, delta, G, solved, lambda some, rest: _solve(some, rest, plan, share))
    if found is None:
        return solved
    return replace(solved, X=found.X, error=found.error, levelled=True)


def _shrunk(S: Tensor, signal: Tensor, told: PatchFit, patches: int) -> tuple[Tensor, Tensor]:
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
    largest = patches * TYPICAL**2
    observed = along.square().mean(1) - noise
    doubt = noise * math.sqrt(2 / told.seen.shape[1])  # no mean of so few squares is known better
    size = torch.maximum(observed, doubt)
    if torch.equal(signal, S.square()):  # with noise on Δ, small singular values are noise as well
        hidden = observed < SURPRISE * doubt
        size = torch.where(hidden, size.minimum(_falling(S, observed, noise)), size)
    size = size.clamp(TINY, largest)
    kept = size / (size + noise).clamp_min(TINY)
    left = torch.where(known, kept * noise, TYPICAL**2)
    return kept[:, None] * along, left


def _falling(S: Tensor, observed: Tensor, noise: Tensor) -> Tensor:
    """Return the mean square (r,) of X along each direction, as those that are resolved show it.

    Where equal patches have equal gradients, as without positions, X falls like the singular
    values. Where a patch has a small gradient because the model hardly looks at it, X does not
    fall. A power of S that bounds the last quarter of the resolved directions tells which.
    """
    clear = (observed > RESOLVED**2 * noise).nonzero()[:, 0]
    last = clear[-max(len(clear) // 4, FEWEST_DIRECTIONS) :]
    if len(last) < FEWEST_DIRECTIONS:
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
    rounding = GROWTH * torch.finfo(computed).eps * TYPICAL * delta.norm(dim=0)
    coarse = share.resolution(plan.positions, computed)
    sent = coarse if coarse > torch.finfo(computed).eps else 0.0
    if computed in (torch.float16, torch.bfloat16):  # the client computes in float32 and rounds
        sent = coarse
    sizes = delta.square().mean(0).sqrt()
    noise = (sizes * sent + share.noise(plan.positions)).to(G)
    made = noise * TYPICAL * math.sqrt(len(delta))
    own = rounding.hypot(made) + share.noise(plan.weight)
    return own.clamp_min(float(own.max()) * 1e-12 + TINY), noise


def _gathered(found: Patches, plan: PatchPlan) -> tuple[Tensor, Tensor]:
    """Return the image and its error; pixels that several patches show are averaged."""
    X, error = found.X, found.error[:, None].expand_as(found.X)
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
