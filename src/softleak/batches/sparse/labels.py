"""Read the labels of recovered inputs, and say what of it all is proved.

Every piece has to hold: the scales explain the bias's gradient, each sample's pattern of active
units is the one that the model gives its recovered input, the labels lie in the simplex, and the
client simulated on the whole batch sends this share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from softleak.batches.sparse.layer import Passed, run_through
from softleak.core.factors import SMALLEST_NORMAL
from softleak.core.knowledge import Knowledge
from softleak.core.results import BatchRecovery, Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.resimulation import Resimulation, exact_copy, own_copy, resimulate

SLOPES_AT_ONCE = 1 << 25  # entries of J held at once, in float64


# These say how units near a kink are treated.
# How often the inputs are moved by a rounding, if units within rounding of a ReLU's kink may have
# switched at the client.
KINKS_RUNS = 16
KINKS_GROWTH = 1.25  # the factor by which these movements grow from one to the next
# A sample's fit is tried again from this root mean square on, in standard errors.
KINKS_MISFIT = 8.0
KINKS_SEED = 0  # the seed of the movements


@dataclass(frozen=True, eq=False)
class Differences:
    """For each of N samples, ``p`` (N, C), ``δ'`` (N, C) and how well it fits.

    Attributes:
        p: the predictions.
        delta: the sample's part of the mean of ``p − y``.
        errors: the standard error (N, C) of ``delta``.
        misfit: the root mean square (N,) of what the fit leaves of ``D``, in standard errors.
    """

    p: Tensor
    delta: Tensor
    errors: Tensor
    misfit: Tensor

    def better(self, other: Differences) -> Differences:
        """Return, sample by sample, the one of the two that fits better."""
        mine = (self.misfit <= other.misfit)[:, None]
        return Differences(
            torch.where(mine, self.p, other.p),
            torch.where(mine, self.delta, other.delta),
            torch.where(mine, self.errors, other.errors),
            self.misfit.minimum(other.misfit),
        )


def differences(
    model: nn.Module, layer: str, x: Tensor, D: Tensor, errors: Tensor, rounding: float
) -> Differences:
    """Return what the gradients at a layer's output say of each sample's ``p − y``.

    Args:
        model: the model in float64.
        layer: the layer's name.
        x: the inputs (N, …).
        D: the gradients (N, m) at the layer's output.
        errors: their standard errors (N, m).
        rounding: the client's relative rounding, by which inputs are moved.
    """
    generator = torch.Generator().manual_seed(KINKS_SEED)
    best = _all_samples(model, layer, x, D, errors)
    for run in range(KINKS_RUNS):
        poor = best.misfit > KINKS_MISFIT
        if not poor.any():
            break
        moves = torch.randn(x.shape, generator=generator, dtype=torch.double).to(x)
        far = 2 * rounding * KINKS_GROWTH**run  # the client's sums may have rounded further
        again = _all_samples(model, layer, x * (1 + far * moves), D, errors)
        best = best.better(replace(again, p=best.p))
    return best


def _all_samples(model: nn.Module, layer: str, x: Tensor, D: Tensor, errors: Tensor) -> Differences:
    classes = run_through(model, layer, x[:1]).logits.shape[1]
    at_once = max(SLOPES_AT_ONCE // (classes * D.shape[1]), 1)
    chunks = range(0, len(x), at_once)
    parts = [
        _fit_samples(run_through(model, layer, x[i : i + at_once]), *_rows(i, at_once, D, errors))
        for i in chunks
    ]
    names = ("p", "delta", "errors", "misfit")
    return Differences(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def _rows(start: int, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor[start : start + count] for tensor in tensors)


def _fit_samples(run: Passed, D: Tensor, errors: Tensor) -> Differences:
    """Fit ``D_i = J_iᵀ δ_i`` with ``Σ_c δ_ic = 0``, weighted by the errors."""
    classes = run.logits.shape[1]
    slopes = [
        torch.autograd.grad(run.logits[:, c].sum(), run.left, retain_graph=True)[0]
        for c in range(classes)
    ]
    J = torch.stack(slopes, 1)  # (N, C, m)
    weighted = J / errors[:, None]
    # The unknowns are δ without its part along (1, …, 1), which is zero.
    basis = torch.linalg.svd(torch.ones(1, classes, dtype=J.dtype, device=J.device))[2][1:]
    A = torch.einsum("kc,ncm->nkm", basis, weighted)
    size = A.flatten(1).norm(dim=1).clamp_min(SMALLEST_NORMAL)[:, None, None]
    gram = (A / size) @ (A / size).transpose(1, 2)
    inverse = torch.linalg.pinv(gram, hermitian=True, rtol=1e-13)
    right = ((A / size) @ (D / errors)[:, :, None]) / size
    t = inverse @ right
    left = (A.transpose(1, 2) @ t)[..., 0] - D / errors
    covariance = basis.T @ (inverse / size.square()) @ basis
    unseen = torch.linalg.matrix_rank(gram, hermitian=True, rtol=1e-13) < classes - 1
    deviation = covariance.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
    deviation = torch.where(unseen[:, None], torch.inf, deviation)
    freedom = max(D.shape[1] - classes + 1, 1)
    misfit = left.square().sum(1).div(freedom).sqrt()
    p = run.logits.detach().softmax(1)
    return Differences(p, (t[..., 0] @ basis), deviation, misfit)


@dataclass(frozen=True, eq=False)
class Weighing:
    """Which weight each found input has in the mean over the batch.

    Attributes:
        weight: the weight that every found input is given.
        low: the least weight (N,) that each may have.
        high: the largest weight (N,) that each may have.
        why: why the weight is not certain, as a sentence; empty if it is.
    """

    weight: float
    low: Tensor
    high: Tensor
    why: str = ""

    def labels(self, p: Tensor, delta: Tensor) -> Tensor:
        """Return ``y = p − δ'/weight`` (N, C)."""
        return p - delta / self.weight

    def label_errors(self, delta: Tensor) -> Tensor:
        """Return by how much, in L1 (N,), labels may be off because weights are not certain."""
        span = (1 / self.low - 1 / self.weight).maximum(1 / self.weight - 1 / self.high)
        return torch.where(self.low == self.high, 0.0, delta.abs().sum(1) * span)


def weigh(p: Tensor, delta: Tensor, errors: Tensor, size: int | None, stated: bool) -> Weighing:
    """Return the weight of each sample.

    Args:
        p: the predictions (N, C).
        delta: their part ``δ'`` (N, C) in the share.
        errors: a bound (N,) of the error of an entry of ``δ'``.
        size: the size of the batch, if it was said.
        stated: whether the caller states the scale of the share.
    """
    found = len(p)
    weight = 1 / max(size or found, found)
    fixed = torch.full_like(p[:, 0], weight)
    anything = Weighing(weight, torch.zeros_like(fixed), torch.full_like(fixed, torch.inf))
    if not stated:
        why = (
            "Nobody vouches that the share was not multiplied by a factor (clipping, a learning "
            "rate), and labels nearer to the model's own prediction explain a larger one as well."
        )
        return replace(anything, why=why)
    if size is not None and size != found:
        why = (
            f"The batch was said to hold {size} samples, but {found} different inputs are behind "
            "the share; equal inputs act as one, or the size was said wrongly."
        )
        return replace(anything, why=why)
    if size is not None:
        return Weighing(weight, fixed, fixed)
    low = (delta - errors[:, None]).div(p.clamp_min(SMALLEST_NORMAL)).amax(1).clamp(0, weight)
    high = low + (1 - low.sum()).clamp_min(0)  # beyond it another weight would have to shrink
    why = (
        "The size of the batch was not said: the labels hold if no input is in it twice. Equal "
        "inputs act as one whose label is their mean."
    )
    return Weighing(weight, low, high, why)


def predicted(
    subject: Subject, x: Tensor, error: float, runs: int, seed: int
) -> tuple[Tensor, Tensor, float]:
    """Return the features (B, I), the error (B,) of ``p`` in L1 and that of features, relative.

    The errors are those of runs in the client's precision with inputs moved by their own error.
    """
    generator = torch.Generator().manual_seed(seed)
    features, p = _seen(subject.once(exact_copy), subject.head.name, x)
    p_errors, feature_errors = [], []
    for _ in range(runs):
        moves = torch.randn(x.shape, generator=generator, dtype=torch.double).to(x)
        moved = _seen(subject.once(own_copy), subject.head.name, x + error * moves)
        p_errors.append((moved[1] - p).abs().sum(1))
        feature_errors.append((moved[0] - features).norm() / features.norm())
    return features, torch.stack(p_errors).amax(0), float(torch.stack(feature_errors).max())


def _seen(model: nn.Module, head: str, x: Tensor) -> tuple[Tensor, Tensor]:
    run = run_through(model, head, x)
    return run.entered.detach().double(), run.logits.detach().double().softmax(1)


# What decides when inputs and labels of a batch count as proved.
# What a linear fit may leave of its equations, in standard errors of rounding. They are estimates;
# the order of a client's sums is a factor of about 10 (see ``resimulation.TOLERANCE``).
VERDICT_MISFIT = 32.0
VERDICT_BOUNDS = 6.0  # an error bound is this many standard errors
VERDICT_RUNS = 3  # runs with moved inputs, from which the error of predictions is taken
VERDICT_SEED = 0  # their seed


@dataclass(frozen=True, eq=False)
class Inputs:
    """The gradients ``D`` (B, m) at the first layer's output and the inputs (B, n).

    Attributes:
        layer: the layer's name.
        D: the gradients at its output, sample by sample.
        errors: the standard errors (B, m) of ``D``.
        X: the inputs.
        input_error: the largest standard error of an entry of ``X``.
        misfit: what the scales leave of the bias's gradient, in standard errors.
    """

    layer: str
    D: Tensor
    errors: Tensor
    X: Tensor
    input_error: float
    misfit: float


def judge(
    subject: Subject, share: GradientShare, knowledge: Knowledge, inputs: Inputs, size: int | None
) -> BatchRecovery:
    """Return the labels of recovered inputs with everything that is proved of them."""
    model, x = subject.once(exact_copy), inputs.X.view(-1, *subject.expected_tensor_shape)
    rounding = share.resolution(f"{inputs.layer}.weight", subject.head.dtype)
    parts = differences(model, inputs.layer, x, inputs.D, inputs.errors, rounding)
    off = VERDICT_BOUNDS * parts.errors * parts.misfit.clamp_min(1)[:, None]
    weighing = weigh(parts.p, parts.delta, off.amax(1), size, knowledge.scale == "known")
    labels = weighing.labels(parts.p, parts.delta)
    features, p_error, feature_error = predicted(
        subject, x, inputs.input_error, VERDICT_RUNS, VERDICT_SEED
    )
    # The client's label itself sums to one only up to rounding.
    known = off.sum(1) / weighing.weight + VERDICT_BOUNDS * (p_error + rounding)
    errors = known + weighing.label_errors(parts.delta)
    problems = list(_problems(inputs, parts, labels, known))
    if not problems:
        problems += disagreements(resimulate(subject, share, x, labels))
    spread = [VERDICT_BOUNDS * feature_error] * len(labels)
    samples = judged(labels, features, errors, spread, not problems, knowledge.tolerance, "input")
    proved = sum(sample.status is Status.UNIQUE for sample in samples)
    status = Status.UNIQUE if proved == len(samples) else Status.AMBIGUOUS
    message = " ".join(_said(proved, len(samples), problems, weighing))
    return BatchRecovery(status, message, size or len(x), samples, x, inputs.input_error)


def judged(
    labels: Tensor,
    features: Tensor,
    errors: Tensor,
    feature_errors: Sequence[float],
    sound: bool,
    tolerance: float,
    beside: str,
) -> tuple[Recovery, ...]:
    """Return the samples: where all is sound, those are proved whose label error is tolerable.

    Args:
        labels: (N, C) the labels.
        features: (N, I) what entered the head.
        errors: (N,) bounds of the labels' errors in L1.
        feature_errors: bounds of the relative errors of the features.
        sound: whether nothing speaks against the samples.
        tolerance: the largest error of a proved label.
        beside: what is known beside the label: "input" or "feature".
    """
    samples = []
    for label, feature, off, spread in zip(labels, features, errors, feature_errors, strict=True):
        sure = sound and float(off) < tolerance
        message = f"One label and one {beside} explain this sample." if sure else "Not proved."
        status = Status.UNIQUE if sure else Status.AMBIGUOUS
        samples.append(
            Recovery(status, message, label, feature, error=float(off), feature_error=float(spread))
        )
    return tuple(samples)


def _problems(inputs: Inputs, parts: Differences, labels: Tensor, errors: Tensor) -> Iterator[str]:
    """Yield what speaks against the samples, as sentences."""
    if not inputs.misfit <= VERDICT_MISFIT:
        yield (
            f"The scales of the samples leave {inputs.misfit:.3g} standard errors of the bias's "
            "gradient."
        )
    unlike = int((~(parts.misfit <= VERDICT_MISFIT)).sum())
    if unlike:
        yield (
            f"For {unlike} samples no label gives the gradient that was found at the first "
            "layer: noise, several local steps, or another model."
        )
    yield from outside_simplex(labels, errors)


def outside_simplex(labels: Tensor, errors: Tensor) -> Iterator[str]:
    """Yield what labels (N, C) with entries below their errors (N,) say against the samples."""
    outside = int((~(labels.amin(1) >= -errors)).sum())
    if outside:
        yield (
            f"The labels of {outside} samples have negative entries: the share was multiplied by "
            "a factor, or the size of the batch is another."
        )


def disagreements(simulated: Resimulation) -> list[str]:
    """Return what a simulated client that sends something else says against the samples."""
    if simulated.agree:
        return []
    if simulated.problem:
        return [f"The client could not be simulated: {simulated.problem}."]
    worst = simulated.worst
    where = "" if worst is None else f"; the worst is {worst.name}, by {worst.misfit:.3g} roundings"
    return [f"The simulated client does not send this share{where}."]


def _said(proved: int, found: int, problems: list[str], weighing: Weighing) -> Iterator[str]:
    """Yield what was found and what it rests on."""
    yield f"The inputs of {found} samples follow from the gradient of the first layer."
    if proved == found:
        yield (
            "Every label is proved: the client, simulated on all samples, sends this share in "
            "every layer up to rounding."
        )
    elif problems:
        yield "Nothing is proved."
    else:
        yield f"The labels of {proved} of them are proved."
    yield from problems
    if weighing.why:
        yield weighing.why
