"""Shares that are not one sample's to within rounding: each explanation is tried in turn.

A zero feature, weight decay, a single altered row, noise, and at last several gradients in one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from softleak.factors import factor, numerical_rank
from softleak.labels.certify import simplest_family
from softleak.labels.decay import without_decay
from softleak.labels.families import OneHot, Smoothed
from softleak.labels.noisy.features import Typical
from softleak.labels.noisy.recover import recover_noisy
from softleak.labels.noisy.spectrum import Spectrum, without_noisy_row
from softleak.labels.signs import is_sign_pattern
from softleak.labels.solve import Problem, solve
from softleak.results import Recovery, Status
from softleak.share import GradientShare

BROKEN: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]
MOST_CLASSES = 128  # for which the posterior behind noise is computed: its cost grows as the cube
INDISTINCT = 1e-4  # of a usual feature: the gradient of a label that is the prediction
SUMMED = 4.0  # roundings of a column's absolute sum in what its entries sum to
ROUNDINGS = 16.0  # of an entry of p − y: what a client's softmax and subtraction may leave


def otherwise(problem: Problem, share: GradientShare, typical: Callable[[], Typical]) -> Recovery:
    """The answer for a share whose head gradient is zero, or not that of one clean sample."""
    head = problem.head
    G = share[head.weight_name].to(head.W.device).double()
    if not G.any():
        return _of_zero_gradient(problem, share)
    explained = _decayed(problem, share) or _mended(problem, share, G)
    if explained is not None:
        return explained
    if _of_rounding(problem, share, typical()):
        return Recovery(
            Status.AMBIGUOUS,
            "the head's gradient is a product as that of one sample is, but its rows do not add up "
            "to zero: the label equals the model's own prediction to within rounding, or the loss "
            "is not a cross-entropy",
        )
    if is_sign_pattern(G):
        return _of_signs(G)
    if G.shape[0] > MOST_CLASSES:
        return _beyond_bounds(G)
    spectrum = Spectrum.of(G)
    if spectrum.samples == 1:
        try:
            return recover_noisy(problem, typical(), share, G, spectrum)
        except (ArithmeticError, BROKEN):
            return Recovery(
                Status.NO_SOLUTION,
                "the head's gradient is not that of one sample with independent noise of equal "
                "size on every entry; the share was altered",
            )
    relative = share.resolution(head.weight_name, head.dtype)
    return _several(min(spectrum.samples, numerical_rank(head, share, relative)))


def _of_rounding(problem: Problem, share: GradientShare, typical: Typical) -> bool:
    """Whether the gradient is a product of a usual feature and a ``p − y`` of rounding errors."""
    factors = factor(problem.head, [share])
    if problem.scale_unknown or math.isinf(typical.doubt) or not bool(factors.rank_one):
        return False
    return float(factors.sigma) < INDISTINCT * math.exp(typical.length)


def _of_signs(G: Tensor) -> Recovery:
    negative = (G.sign().sum(1) < 0).nonzero()[:, 0].tolist()
    return Recovery(
        Status.AMBIGUOUS,
        "all entries of the head's gradient have the same size: it is a pattern of signs, as the "
        "first step of Adam or signSGD leaves, and sizes are lost. If features are not negative, "
        f"classes {negative} are those that one sample's label raises",
    )


def _beyond_bounds(G: Tensor) -> Recovery:
    """What is said of a noisy share whose posterior would take too long."""
    spectrum = Spectrum.of(G)
    if spectrum.samples > 1:
        return _several(spectrum.samples)
    return Recovery(
        Status.GUESS,
        f"noise of standard deviation {spectrum.noise:.2g} on the head's gradient; with "
        f"{len(G)} classes the probability of a label is not computed (at most {MOST_CLASSES}), so "
        "no label is claimed",
        noise=spectrum.noise,
    )


def _several(rank: int) -> Recovery:
    return Recovery(
        Status.NOT_SINGLE,
        f"{rank} singular values of the head's gradient stand out of rounding and noise, and one "
        f"sample has one: at least {rank} gradients were added up, of several samples or of "
        "several local steps; no label is claimed",
        samples=rank,
    )


def reconsidered(problem: Problem, share: GradientShare, answer: Recovery) -> Recovery:
    """The answer, or a proof if only a weight decay too small for the rank stood in its way."""
    if answer.status is Status.UNIQUE:
        return answer
    without = _decayed(problem, share)
    return without if without is not None and without.status is Status.UNIQUE else answer


def _of_zero_gradient(problem: Problem, share: GradientShare) -> Recovery:
    """With a bias whose gradient is not zero the feature is: then ``y = softmax(b) − g_b``."""
    head = problem.head
    told = head.bias_name in share and not problem.head_only
    g = share[head.bias_name].to(head.W.device).double() if told else None
    if g is not None and g.any() and share.noise(head.weight_name) > 0:
        return from_bias_alone(problem, share)  # weights that did not move prove no zero
    if g is None or not g.any() or problem.scale_unknown:
        why = (
            "the label equals the model's prediction to machine precision"
            if g is not None and not g.any()
            else "either the label equals the model's prediction to machine precision, or the "
            "feature before the head is zero"
        )
        return Recovery(Status.ZERO_GRADIENT, f"the head's gradient is exactly zero: {why}")
    return _of_zero_feature(problem, share, g)


def _of_zero_feature(problem: Problem, share: GradientShare, g: Tensor) -> Recovery:
    head = problem.head
    p = torch.softmax(head.b, -1)
    relative = share.resolution(head.bias_name, head.dtype)
    error = ROUNDINGS * relative * (p + g.abs()) + share.noise(head.bias_name)
    y, bound = p - g, float(error.sum())
    if not bool((y >= -error).all()) or abs(float(g.sum())) > bound:
        return Recovery(
            Status.NO_SOLUTION,
            "the feature before the head is zero, but the gradient of the head's bias is not that "
            "of one sample: the share was scaled or altered",
        )
    label = y.clamp_min(0) / y.clamp_min(0).sum()
    family = simplest_family(label, bound)
    # A mean of several labels is one-hot only if all of them are that one.
    simple = isinstance(family, OneHot) or (
        isinstance(family, Smoothed) and problem.scale == "known"
    )
    single = simple and bound <= problem.tolerance
    doubt = "" if single else ", of one sample or the mean of several, if nobody scaled the share"
    return Recovery(
        Status.UNIQUE if single else Status.AMBIGUOUS,
        "the feature before the head is zero, so the label of the cross-entropy loss is softmax(b) "
        f"less the bias gradient{doubt}",
        label,
        torch.zeros_like(head.W[0], dtype=torch.double), float(g.norm()), bound, 0.0,
        family=family, difference=g, complete=single,
    )  # fmt: skip


def from_bias_alone(problem: Problem, share: GradientShare) -> Recovery:
    """What is left when the head's weight has no gradient: ``p − y`` itself."""
    head = problem.head
    g = share[head.bias_name].to(head.W.device).double()
    relative = share.resolution(head.bias_name, head.dtype)
    error = ROUNDINGS * relative * float(g.abs().max()) + share.noise(head.bias_name)
    present = (g < -error).nonzero()[:, 0].tolist()
    named = ", ".join(map(str, present)) or "none"
    return Recovery(
        Status.AMBIGUOUS,
        "the share holds no gradient of the head's weight, or one that rounding hides; that of its "
        "bias is p − y up to the share's factor (the mean over the batch): classes proved to be in "
        f"a label: {named}",
        difference=g,
    )


def _decayed(problem: Problem, share: GradientShare) -> Recovery | None:
    """The recovery without the weight decay, if that is all that is wrong."""
    found = [
        (answer, tried.decay)
        for tried in without_decay(problem, share)
        if (answer := _single(problem, tried.share)) is not None
    ]
    clean = [pair for pair in found if pair[0].status is Status.UNIQUE] or found
    if not clean:
        return None
    answer, decay = clean[0]
    return replace(answer, message=f"{answer.message}; a weight decay of {decay:.3g} was undone")


def _mended(problem: Problem, share: GradientShare, G: Tensor) -> Recovery | None:
    """The recovery without the noise of a single row, if that is all that is wrong."""
    found = without_noisy_row(G)
    if found is None:
        return None
    name, (clean, row) = problem.head.weight_name, found
    sent = share[name].dtype
    whole = share.map(lambda n, g: clean.to(g.device, sent) if n == name else g)
    # The row holds the roundings of all the others, and of the probabilities, which sum to one only
    # up to theirs: far more than a part of its own size.
    rounding = share.resolution(name, problem.head.dtype) * float(clean.abs().sum(0).max())
    known = {**share.rounding, name: math.hypot(share.noise(name), SUMMED * rounding)}
    answer = _single(problem, replace(whole, scale=share.scale, rounding=known))
    if answer is None:
        return None
    mended = f"; row {row} of the head's gradient was altered and taken from the others"
    return replace(answer, message=answer.message + mended)


def _single(problem: Problem, share: GradientShare) -> Recovery | None:
    """The recovery of one share, if it is one sample's to within rounding."""
    factors = factor(problem.head, [share])
    if not bool(factors.rank_one & ~factors.zero):
        return None
    answer = solve(problem, factors, [share])[0]
    return answer if factors.balanced(0, answer.scalar) else None
