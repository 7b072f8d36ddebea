"""Answer for shares that are not one sample's to within rounding.

It tries each explanation in turn: a zero feature, weight decay, a single altered row, noise, and at
last several gradients in one.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from softleak.core.factors import Factors, numerical_rank
from softleak.core.families import OneHot
from softleak.core.head import Head
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.certify import simplest_family
from softleak.labels.composition import is_sign_pattern
from softleak.labels.decay import solve_single, undo_decay
from softleak.labels.noisy.features import Typical
from softleak.labels.noisy.recover import recover_noisy
from softleak.labels.noisy.spectrum import Spectrum, without_noisy_row

DIFFERENCE_ROUNDINGS = 16.0  # of an entry of p − y: what a softmax and a subtraction may leave


def of_zero_gradient(subject: Subject, knowledge: Knowledge, share: GradientShare) -> Recovery:
    """Return the answer for a zero gradient of the head: ``y = softmax(b) − g_b`` if the bias has
    one.
    """
    head = subject.head
    told = head.bias_name in share and not knowledge.head_only
    g = share[head.bias_name].to(head.W.device).double() if told else None
    if g is not None and g.any() and share.noise(head.weight_name) > 0:
        return from_bias_alone(subject, share)  # weights that did not move prove no zero
    if g is None or not g.any() or knowledge.scale_unknown:
        why = (
            "the label equals the model's prediction to machine precision"
            if g is not None and not g.any()
            else "either the label equals the model's prediction to machine precision, or the "
            "feature before the head is zero"
        )
        return Recovery(Status.ZERO_GRADIENT, f"the head's gradient is exactly zero: {why}")
    return _of_zero_feature(subject, knowledge, share, g)


def _of_zero_feature(
    subject: Subject, knowledge: Knowledge, share: GradientShare, g: Tensor
) -> Recovery:
    head = subject.head
    p = torch.softmax(head.b, -1)
    relative = share.resolution(head.bias_name, head.dtype)
    error = DIFFERENCE_ROUNDINGS * relative * (p + g.abs()) + share.noise(head.bias_name)
    y, bound = p - g, float(error.sum())
    if not bool((y >= -error).all()) or abs(float(g.sum())) > bound:
        return Recovery(
            Status.NO_SOLUTION,
            "the feature before the head is zero, but the gradient of the head's bias is not that "
            "of one sample: the share was scaled or altered",
        )
    label = y.clamp_min(0) / y.clamp_min(0).sum()
    family = simplest_family(label, bound)
    # A mean of several labels is one-hot only if all of them are that one. It may be smoothed
    # though none of them is: two samples of one class and one of each other.
    single = isinstance(family, OneHot) and bound <= knowledge.tolerance
    doubt = "" if single else ", of one sample or the mean of several, if nobody scaled the share"
    return Recovery(
        Status.UNIQUE if single else Status.AMBIGUOUS,
        "the feature before the head is zero, so the label of the cross-entropy loss is softmax(b) "
        f"less the bias gradient{doubt}",
        label,
        torch.zeros_like(head.W[0], dtype=torch.double), float(g.norm()), bound, 0.0,
        family=family, difference=g, complete=single,
    )  # fmt: skip


def from_bias_alone(subject: Subject, share: GradientShare) -> Recovery:
    """Return what is left when the head's weight has no gradient: ``p − y`` itself."""
    head = subject.head
    g = share[head.bias_name].to(head.W.device).double()
    relative = share.resolution(head.bias_name, head.dtype)
    error = DIFFERENCE_ROUNDINGS * relative * float(g.abs().max()) + share.noise(head.bias_name)
    present = (g < -error).nonzero()[:, 0].tolist()
    named = ", ".join(map(str, present)) or "none"
    return Recovery(
        Status.AMBIGUOUS,
        "the share holds no gradient of the head's weight, or one that rounding hides; that of its "
        "bias is p − y up to the share's factor (the mean over the batch): classes proved to be in "
        f"a label: {named}",
        difference=g,
    )


# What chooses an explanation for shares that are not one clean sample.
OTHERWISE_MOST_CLASSES = 128
OTHERWISE_INDISTINCT = 1e-4  # of a usual feature: the gradient of a label that is the prediction
OTHERWISE_SUMMED_ROUNDINGS = 4.0  # roundings of a column's absolute sum in what its entries sum to


BROKEN: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]


def otherwise(
    subject: Subject, knowledge: Knowledge, share: GradientShare, factors: Factors
) -> Recovery:
    """Return the answer for a share whose head gradient is not that of one clean sample."""
    head = subject.head
    G = share[head.weight_name].to(head.W.device).double()
    if not G.any():
        return of_zero_gradient(subject, knowledge, share)
    if is_sign_pattern(G):
        return _of_signs(G)
    rank = numerical_rank(head, share, share.resolution(head.weight_name, head.dtype))
    explained = _explained(subject, knowledge, share, G, rank)
    if explained is not None:
        return explained
    if _of_rounding(subject, knowledge, factors):
        return Recovery(
            Status.AMBIGUOUS,
            "the head's gradient is a product as that of one sample is, but its rows do not add up "
            "to zero: the label equals the model's own prediction to within rounding, the loss is "
            "not a softmax cross-entropy, or rows were altered",
        )
    if G.shape[0] > OTHERWISE_MOST_CLASSES:
        return _beyond_bounds(G)
    spectrum = Spectrum.of(G)
    if spectrum.samples == 1:
        try:
            return recover_noisy(subject, knowledge, share, G, spectrum)
        except (ArithmeticError, BROKEN):
            return Recovery(
                Status.NO_SOLUTION,
                "the head's gradient is not that of one sample with independent noise of equal "
                "size on every entry; the share was altered",
            )
    return _several(min(spectrum.samples, rank))


def _explained(
    subject: Subject, knowledge: Knowledge, share: GradientShare, G: Tensor, rank: int
) -> Recovery | None:
    """Return the answer if weight decay, several samples or one altered row are all there is.

    Args:
        G: (C, I) the head's gradient.
        rank: the number of its singular values above rounding.
    """
    undone = undo_decay(subject, knowledge, share)
    if undone is not None or not _adds_up(subject.head, share, G):
        return undone or _mended(subject, knowledge, share, G)
    return _several(rank) if rank > 1 else None  # noise and pruning would not leave such sums


def _adds_up(head: Head, share: GradientShare, G: Tensor) -> bool:
    """Return whether the rows of the head's gradient add up to zero to within rounding.

    They do for one sample and for many, and behind noise or pruning they do not.
    """
    relative = share.resolution(head.weight_name, head.dtype)
    rounding = share.noise(head.weight_name) * G.numel() ** 0.5
    return float(G.sum(0).norm()) <= math.hypot(relative * float(G.norm()), rounding)


def _of_rounding(subject: Subject, knowledge: Knowledge, factors: Factors) -> bool:
    """Return whether the gradient may be a feature times a ``p − y`` of rounding errors.

    It has rank one then. Its size is compared with that of a usual feature where both are known.
    """
    if not bool(factors.rank_one):
        return False
    if knowledge.scale_unknown:
        return True
    typical = subject.once(Typical.of)  # it runs the model, which the other checks do not
    usual = math.exp(typical.length)
    return math.isinf(typical.doubt) or float(factors.sigma) < OTHERWISE_INDISTINCT * usual


def _of_signs(G: Tensor) -> Recovery:
    negative = (G.sign().sum(1) < 0).nonzero()[:, 0].tolist()
    return Recovery(
        Status.AMBIGUOUS,
        "all entries of the head's gradient have the same size: it is a pattern of signs, as the "
        "first step of Adam or signSGD leaves, and sizes are lost. If features are not negative, "
        f"classes {negative} are those that one sample's label raises",
    )


def _beyond_bounds(G: Tensor) -> Recovery:
    """Return what is said of a noisy share whose posterior would take too long."""
    spectrum = Spectrum.of(G)
    if spectrum.samples > 1:
        return _several(spectrum.samples)
    return Recovery(
        Status.GUESS,
        f"noise of standard deviation {spectrum.noise:.2g} on the head's gradient; with "
        f"{len(G)} classes the probability of a label is not computed (at most "
        f"{OTHERWISE_MOST_CLASSES}), so no label is claimed",
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


def _mended(
    subject: Subject, knowledge: Knowledge, share: GradientShare, G: Tensor
) -> Recovery | None:
    """Return the recovery without the noise of a single row, if that is all that is wrong."""
    found = without_noisy_row(G)
    if found is None:
        return None
    name, (clean, row) = subject.head.weight_name, found
    sent = share[name].dtype
    whole = share.map(lambda n, g: clean.to(g.device, sent) if n == name else g)
    # The row holds the roundings of all the others, and of the probabilities, which sum to one only
    # up to theirs: far more than a part of its own size.
    rounding = share.resolution(name, subject.head.dtype) * float(clean.abs().sum(0).max())
    known = {
        **share.rounding,
        name: math.hypot(share.noise(name), OTHERWISE_SUMMED_ROUNDINGS * rounding),
    }
    answer = solve_single(subject, knowledge, replace(whole, scale=share.scale, rounding=known))
    if answer is None:
        return None
    mended = f"; row {row} of the head's gradient was altered and taken from the others"
    return replace(answer, message=answer.message + mended)
