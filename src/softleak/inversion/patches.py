"""An image, computed from the gradients of positions and of the patch projection.

A vision transformer cuts an image into N patches ``X`` (N, K), projects them by a weight ``W``
(d, K) and adds a learned position ``P`` to each. With ``Δ = ∂L/∂P`` (N, d) the gradient of the
weight is ``∂L/∂W = Δᵀ X``: d equations for the N unknowns of each column. Neither the label nor the
scale of the share enters. No names are consulted: a weight and a parameter are a plan if this
equation holds on images that are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.core.client import capture
from softleak.core.errors import ModelError, ShareError, SoftleakError, in_a_line
from softleak.core.forward import forward_one, random_tensor, recorded_inputs, seeded
from softleak.core.input_spec import Shape
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.results import Inversion, LayerReport, NoWay
from softleak.inversion.steps import REMEDY
from softleak.numerics.least_squares import TINY, conjugate_gradients

DIGIT_BASE = 128  # every number format holds such integers exactly
OUTSIDE = -1  # the number of a place that holds no pixel, such as padding
PLAN_RUNS = 2  # random images that the equation is tried on
PLAN_TOLERANCE = 64.0  # what may remain of the weight's gradient, in units of the rounding of a sum
PLAN_SEED = 0  # of these images


def pixel_layers(model: nn.Module, shape: Shape) -> Iterator[tuple[str, Tensor]]:
    """Yield each linear layer or convolution that reads patches of the image, by name.

    With it comes the number (N, K) of the pixel behind each entry of each of its N patches, in
    the order of the columns of its weight (d, K).
    """
    readers = {name: module for name, module in model.named_modules() if _may_read(module)}
    places = math.prod(shape)
    digits = max(math.ceil(math.log(max(places, 2), DIGIT_BASE)), 1)
    numbered = torch.arange(places).reshape(shape)
    seen = [
        _entering(model, readers, (numbered // DIGIT_BASE**place % DIGIT_BASE).double())
        for place in range(digits)
    ]
    for name, module in readers.items():
        if not all(name in run for run in seen):
            continue
        numbers = sum(run[name].double() * DIGIT_BASE**k for k, run in enumerate(seen))
        assert isinstance(numbers, Tensor)
        if _are_pixels(numbers, [run[name] for run in seen], places):
            patches = _patches(module, numbers)
            if len(patches) > 1:
                yield name, patches


def _may_read(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv2d):
        plain = module.groups == 1 and module.padding_mode == "zeros"
        return plain and not isinstance(module.padding, str)
    return isinstance(module, nn.Linear)


def _entering(model: nn.Module, layers: dict[str, nn.Module], x: Tensor) -> dict[str, Tensor]:
    """Return the input of each layer that was called once."""
    try:
        with torch.no_grad(), recorded_inputs(model, *layers) as seen:
            forward_one(model, x)
    except ModelError:
        return {}
    return {name: calls[0] for name, calls in seen.items() if len(calls) == 1}


def _are_pixels(numbers: Tensor, digits: list[Tensor], places: int) -> bool:
    """Return whether a layer's input shows pixels and nothing else, and each of them."""
    whole = all(bool(((d == d.round()) & (d >= 0) & (d < DIGIT_BASE)).all()) for d in digits)
    if not whole or numbers.max() >= places:
        return False
    return int(torch.unique(numbers.long()).numel()) == places


def _patches(module: nn.Module, numbers: Tensor) -> Tensor:
    """Return the pixels (N, K) that enter each of the N products of a layer."""
    if isinstance(module, nn.Linear):
        return numbers.reshape(-1, numbers.shape[-1]).long()
    assert isinstance(module, nn.Conv2d)
    assert not isinstance(module.padding, str)
    # Padding becomes the number 0 of a pixel, so numbers are shifted by one and back.
    columns = F.unfold(
        numbers + 1, module.kernel_size, module.dilation, module.padding, module.stride
    )
    return columns[0].T.long() + OUTSIDE


@dataclass(frozen=True, eq=False)
class PatchPlan:
    """Which gradients tell the patches of an image, and where its pixels are."""

    weight: str  # the name of the patch projection's weight
    positions: str  # the name of the parameter that is added to the projected patches
    # The row of ``positions`` that belongs to the first patch; class, distillation and register
    # tokens stand before it or behind the last.
    first: int
    factor: float  # what the positions are multiplied by before they are added
    pixels: Tensor  # (N, K) the number of the pixel behind each entry of each patch, −1 for padding
    shape: Shape  # the shape of the image

    def read(self, gradients: GradientShare) -> tuple[Tensor, Tensor]:
        """Return ``Δ`` (N, d) and ``∂L/∂W`` (d, K) of a share, in float64."""
        G = gradients[self.weight].double().flatten(1)
        rows = _rows(gradients[self.positions].double(), len(G))
        assert rows is not None
        return rows[self.first : self.first + len(self.pixels)] / self.factor, G


NO_POSITIONS = NoWay("the model has no learned position of its own for each patch")


def patch_plan(subject: Subject) -> PatchPlan | NoWay:
    """Return where a subject's gradients tell the patches of an image, or why nowhere."""
    shape = subject.tensor_shape
    if shape is None:
        return NoWay("the input is not one tensor of real numbers of a known shape")
    added = _addable(subject.model)
    if not added:
        return NO_POSITIONS
    try:
        found = next(_plans(subject.model, shape, added), None)
    except SoftleakError as error:
        return NoWay(str(error))
    except Exception as error:  # the model's own code may raise anything
        return NoWay(f"the model cannot be probed: {in_a_line(error)}")
    return found or NoWay(
        "no parameter that the model learns is added to projected patches of the image, so the "
        "gradient at each patch is not sent by itself (positions may be fixed, relative or resized)"
    )


def _addable(model: nn.Module) -> list[str]:
    """Return the parameters that may hold positions: those of no layer, and rows of tables."""
    tables = [name for name, m in model.named_modules() if isinstance(m, nn.Embedding)]
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    layers = nn.Linear | nn.Embedding | nn.modules.conv._ConvNd | nn.MultiheadAttention
    wide = [n for n, p in trained.items() if p.ndim > 1]
    free = [n for n in wide if not isinstance(model.get_submodule(n.rpartition(".")[0]), layers)]
    return free + [f"{name}.weight" for name in tables if f"{name}.weight" in trained]


def _plans(model: nn.Module, shape: Shape, added: list[str]) -> Iterator[PatchPlan]:
    """Yield the plans that hold on random images."""
    layers = list(pixel_layers(model, shape))
    if not layers:
        return
    generator = torch.Generator().manual_seed(PLAN_SEED)
    images = [random_tensor(shape, i, generator) for i in range(PLAN_RUNS)]
    with seeded(PLAN_SEED, next(model.parameters())):
        shares = [capture(model, x, i % 2) for i, x in enumerate(images)]
    for name, pixels in layers:
        for positions in added:
            plan = _plan(f"{name}.weight", positions, pixels, shape, (images, shares))
            if plan is not None:
                yield plan


def _plan(
    weight: str, positions: str, pixels: Tensor, shape: Shape,
    known: tuple[list[Tensor], list[GradientShare]],
) -> PatchPlan | None:  # fmt: skip
    """Return the plan of two parameters if its equation holds on every known image."""
    images, shares = known
    if not all(weight in share and positions in share for share in shares):
        return None
    width, count = len(shares[0][weight]), len(pixels)
    rows = _rows(shares[0][positions], width)
    if rows is None:
        return None
    for first in range(len(rows) - count + 1):
        plan = PatchPlan(weight, positions, first, 1.0, pixels, shape)
        factors = [_factor(plan, x, share) for x, share in zip(images, shares, strict=True)]
        if all(factors) and all(abs(one / factors[0] - 1) < 1e-3 for one in factors):
            return replace(plan, factor=1.0 if abs(factors[0] - 1) < 1e-4 else 1 / factors[0])
    return None


def _factor(plan: PatchPlan, x: Tensor, share: GradientShare) -> float:
    """Return c with ``∂L/∂W = c Δᵀ X``; 0 if there is none."""
    delta, G = plan.read(share)
    patches = patches_of(x.to(G), plan.pixels)
    made = delta.T @ patches
    size = float(made.square().sum())
    c = float((made * G).sum()) / size if size else 0.0
    eps = torch.finfo(share[plan.weight].dtype).eps
    sizes = (abs(c) * (delta.abs().T @ patches.abs())).norm()
    return c if (G - c * made).norm() <= PLAN_TOLERANCE * eps * sizes else 0.0


def patches_of(x: Tensor, pixels: Tensor) -> Tensor:
    """Return the patches (N, K) of an image; padding is zero."""
    values: Tensor = torch.where(
        pixels == OUTSIDE, 0.0, x.flatten()[pixels.to(x.device).clamp_min(0)]
    )
    return values


def _rows(held: Tensor, width: int) -> Tensor | None:
    """Return a parameter as rows (T, d) of this width, if its shape allows; else None."""
    if held.shape[-1] == width:
        return held.reshape(-1, width)
    if held.ndim > 2 and held.shape[:2] == (1, width):  # a map of positions
        return held[0].flatten(1).T
    return None


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
class SolvedPatches:
    """Patches (N, K) with a standard error (N,) for each, and how well the equations told them."""

    X: Tensor
    error: Tensor
    condition: float
    residual: float
    open: int  # directions, of N, that the equations do not tell
    noisy: bool  # whether the share carries more than the rounding of its sums
    levelled: bool = False  # whether every pixel was found to lie on the levels of an 8-bit image


def on_levels(
    plan: PatchPlan, delta: Tensor, G: Tensor, found: SolvedPatches,
    solve: Callable[[Tensor, Tensor], SolvedPatches],
) -> SolvedPatches | None:  # fmt: skip
    """Return the patches with every pixel on a level, or None if they do not lie on levels.

    ``delta`` (N, d) is the gradient at each patch, ``G`` (d, K) that of the projection; ``solve``
    solves ``Δᵀ X = G`` for some of the patches.
    """
    channels = _channels(plan).to(found.X.device)
    blur = BLUR * found.X.square().mean().sqrt()
    found = replace(found, error=found.error.hypot(blur))
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
    return replace(found, X=X, error=blur.expand_as(found.error), levelled=True)


def _channels(plan: PatchPlan) -> Tensor:
    """Return the channel (N, K) of each entry of the patches; padding is one of its own."""
    size = plan.shape[-1] * plan.shape[-2] if len(plan.shape) == 3 else plan.pixels.numel()
    channels = plan.pixels // size
    return torch.where(plan.pixels == OUTSIDE, channels.max() + 1, channels)


def _levels(channels: Tensor, found: SolvedPatches) -> tuple[Tensor, Tensor] | None:
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


class PatchFit(NamedTuple):
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
                f"the share lacks {name!r}, without which the patches are not told apart; {REMEDY}"
            )
    delta, G = plan.read(share)
    solved = _solve(delta, G, plan, share)
    if not solved.open and not solved.noisy:
        levelled = on_levels(plan, delta, G, solved, lambda d, g: _solve(d, g, plan, share))
        solved = levelled or solved
    value, error = _gathered(solved, plan)
    worth = torch.as_tensor(pixel, dtype=torch.double, device=value.device)
    report = LayerReport(
        plan.weight.rpartition(".")[0], G.numel(), plan.pixels.numel(), solved.condition,
        solved.residual, solved.open == 0,
    )  # fmt: skip
    return Inversion(value, error, (report,), worth, _said(plan, solved, delta.shape[1]))


def _solve(delta: Tensor, G: Tensor, plan: PatchPlan, share: GradientShare) -> SolvedPatches:
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
    condition = float(S[0] / S[-1].clamp_min(TINY))
    return SolvedPatches(X, error, condition, told.residual, missing, noisy)


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


def _gathered(found: SolvedPatches, plan: PatchPlan) -> tuple[Tensor, Tensor]:
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


def _said(plan: PatchPlan, solved: SolvedPatches, width: int) -> str:
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
