"""Answer for shares that are not one sample's to within rounding.

It tries each explanation in turn: a zero feature, signs, weight decay, a single altered row, noise,
and at last several gradients in one. A weight decay may be so small that it looks like rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from softleak.core.factors import SECOND_VALUE, Factors, factor, numerical_rank
from softleak.core.families import OneHot
from softleak.core.head import column_sums
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.core.vocabulary import Precision
from softleak.labels.certify import Doubt, simplest_family, with_note
from softleak.labels.curve import on_simplex
from softleak.labels.noisy.recover import recover_noisy
from softleak.labels.noisy.spectrum import Spectrum, Typical, without_noisy_row
from softleak.labels.solve import solve

SIGN_PATTERN_ALIKE = 0.02  # relative: entries this close to the median are of one size
SIGN_PATTERN_MOST = 0.9  # the part of entries beside zero that has this size
SIGN_PATTERN_FEWEST = 12  # entries that can show a pattern


def is_sign_pattern(gradient: Tensor) -> bool:
    """Return whether nearly all entries have one size or are next to zero, and none is larger."""
    sizes = gradient.detach().double().abs().flatten()
    if not len(sizes):
        return False
    largest, slack = float(sizes.max()), SIGN_PATTERN_ALIKE
    low, high = slack * largest, (1 - slack) / (1 + slack) * largest
    between = int(((sizes > low) & (sizes < high)).sum())
    if between > (1 - SIGN_PATTERN_MOST) * sizes.numel():
        return False  # most gradients end here
    sizes = sizes[sizes > 0]
    large = sizes[sizes > largest / 2]
    if len(large) < SIGN_PATTERN_FEWEST:
        return False
    ratios = sizes / large.median()
    alike = ((ratios - 1).abs() < SIGN_PATTERN_ALIKE) | (ratios < SIGN_PATTERN_ALIKE)
    none_larger = float(ratios.max()) < 1 + SIGN_PATTERN_ALIKE
    return none_larger and float(alike.double().mean()) >= SIGN_PATTERN_MOST


DECAY_LEAST_ERRORS = 16.0  # errors: a decay closer to zero than this is none
DECAY_LEFT_ERRORS = 4.0  # errors of the decay that its removal may leave
DECAY_SMALL_LEFT = 0.25  # of the sums over columns: what a decay within rounding may leave
COARSE: Mapping[torch.dtype, Precision] = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


def without_decay(
    subject: Subject, share: GradientShare, *, sums: Tensor | None = None
) -> Iterator[tuple[GradientShare, float]]:
    """Yield the share without weight decay, and how large that was.

    It is taken from all parameters, and from matrices only, as recipes have it.

    Args:
        sums: the sums (I,) over the columns of the head's gradient, if the share is one sample's
            to within rounding. They are then ``x`` times the rounding of ``Σδ``, and only a decay
            that explains most of them is one: of 180 clean shares it left 84 % or more.
    """
    head = subject.head
    weights = head.column_sums
    size = float(weights.norm())
    if size == 0:
        return
    sent = share[head.weight_name].to(head.W.device)
    of_columns = column_sums(sent) if sums is None else sums
    decay = float(of_columns @ weights) / size**2
    left = float((of_columns - decay * weights).norm())
    if sums is not None and left > DECAY_SMALL_LEFT * float(of_columns.norm()):
        return  # most clean shares end here
    G, relative = sent.double(), share.resolution(head.weight_name, head.dtype)
    # Each column sums to zero up to the rounding of its entries.
    noise = G.new_tensor(share.noise(head.weight_name) * len(G) ** 0.5)
    off = (relative * G.norm(dim=0)).hypot(noise)
    error = float((off * weights).norm()) / size**2
    if abs(decay) <= DECAY_LEAST_ERRORS * error or left > SECOND_VALUE * float(off.norm()):
        return
    precision = share.precision or COARSE.get(sent.dtype)
    for smallest in (0, 2):  # dimensions of a parameter that decays
        changed, rounding = dict(share.items()), dict(share.rounding)
        held = ((n, p) for n, p in subject.parameters.items() if n in share and p.ndim >= smallest)
        for name, parameter in held:
            weight, gradient = parameter.detach().double(), share[name]
            changed[name] = gradient.double() - decay * weight.to(gradient.device)
            unsure = DECAY_LEFT_ERRORS * error + share.resolution(name, head.dtype) * abs(decay)
            rounding[name] = share.noise(name) + unsure * float(weight.abs().max())
        yield replace(share, gradients=changed, rounding=rounding, precision=precision), decay


def solve_single(subject: Subject, knowledge: Knowledge, share: GradientShare) -> Recovery | None:
    """Return the recovery of one share, if it is one sample's to within rounding."""
    factors = factor(subject.head, [share])
    if not bool(factors.rank_one & ~factors.zero):
        return None
    answer = solve(subject, knowledge, factors, [share])[0]
    return answer if factors.balanced(0, answer.scalar) else None


def undo_decay(
    subject: Subject, knowledge: Knowledge, share: GradientShare, *, sums: Tensor | None = None
) -> Recovery | None:
    """Return the recovery without the weight decay (``without_decay``), if no more is wrong."""
    found = [
        with_note(answer, f"a weight decay of {decay:.3g} was undone")
        for tried, decay in without_decay(subject, share, sums=sums)
        if (answer := solve_single(subject, knowledge, tried)) is not None
    ]
    return next((one for one in found if one.status is Status.UNIQUE), next(iter(found), None))


def allow_for_decay(
    subject: Subject, knowledge: Knowledge, share: GradientShare, sums: Tensor, found: Recovery
) -> Recovery:
    """Return the answer for a share that is one sample's to within rounding, decayed or not.

    A decay ``λ W`` that is hardly more than the rounding of ``G`` leaves it a product, but moves
    ``u`` by ``λ W v``, of which the rounding of ``u`` knows nothing. The ``sums`` (I,) over columns
    show it long before that. Its error then holds the label as it would be read with the decay,
    too.
    """
    undone = undo_decay(subject, knowledge, share, sums=sums)
    if undone is None or undone.label is None:
        return found
    if found.label is None:
        return undone
    apart = float((undone.label - found.label).abs().sum())
    error = max(undone.error, found.error + apart)
    wide = undone.status is Status.UNIQUE and error > knowledge.tolerance
    return replace(undone, error=error, status=Status.AMBIGUOUS if wide else undone.status)


DIFFERENCE_ROUNDINGS = 16.0  # of an entry of p − y: what a softmax and a subtraction may leave


def of_zero_gradient(subject: Subject, knowledge: Knowledge, share: GradientShare) -> Recovery:
    """Return the answer for a head gradient of zeros: ``y = softmax(b) − g_b`` by the bias."""
    head = subject.head
    told = head.bias_name in share and not knowledge.head_only
    g = share[head.bias_name].to(head.W.device).double() if told else None
    why = "the label equals the model's prediction to machine precision"
    if g is None or (knowledge.scale_unknown and g.any()):
        why = f"either {why}, or the feature before the head is zero"
    if g is not None and g.any():
        if share.noise(head.weight_name) > 0:
            return from_bias_alone(subject, share)  # weights that did not move prove no zero
        if not knowledge.scale_unknown:
            return _of_zero_feature(subject, knowledge, share, g)
    return Recovery(Status.ZERO_GRADIENT, f"the head's gradient is exactly zero: {why}")


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
    label = on_simplex(y)
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
        negative = (G.sign().sum(1) < 0).nonzero()[:, 0].tolist()
        return Recovery(
            Status.AMBIGUOUS,
            "all entries of the head's gradient have the same size: it is a pattern of signs, as "
            "the first step of Adam or signSGD leaves, and sizes are lost. If features are not "
            f"negative, classes {negative} are those that one sample's label raises",
        )
    rank = numerical_rank(head, share, share.resolution(head.weight_name, head.dtype))
    explained = _explained(subject, knowledge, share, G, rank)
    if explained is not None:
        return explained
    if _of_rounding(subject, knowledge, factors):
        return Recovery(Status.AMBIGUOUS, Doubt.UNBALANCED.value)
    spectrum, many = Spectrum.of(G), len(G) > OTHERWISE_MOST_CLASSES
    if spectrum.samples > 1:
        return _several(spectrum.samples if many else min(spectrum.samples, rank))
    if many:  # the posterior would take too long
        return Recovery(
            Status.GUESS,
            f"noise of standard deviation {spectrum.noise:.2g} on the head's gradient; with "
            f"{len(G)} classes the probability of a label is not computed (at most "
            f"{OTHERWISE_MOST_CLASSES}), so no label is claimed",
            noise=spectrum.noise,
        )
    try:
        return recover_noisy(subject, knowledge, share, G, spectrum)
    except (ArithmeticError, BROKEN):
        return Recovery(
            Status.NO_SOLUTION,
            "the head's gradient is not that of one sample with independent noise of equal "
            "size on every entry; the share was altered",
        )


def _explained(
    subject: Subject, knowledge: Knowledge, share: GradientShare, G: Tensor, rank: int
) -> Recovery | None:
    """Return the answer if weight decay, several samples or one altered row are all there is."""
    undone = undo_decay(subject, knowledge, share)
    name = subject.head.weight_name
    relative = share.resolution(name, subject.head.dtype)
    off = math.hypot(relative * float(G.norm()), share.noise(name) * G.numel() ** 0.5)
    if undone is not None or float(G.sum(0).norm()) > off:
        return undone or _mended(subject, knowledge, share, G)
    return _several(rank) if rank > 1 else None


def _of_rounding(subject: Subject, knowledge: Knowledge, factors: Factors) -> bool:
    """Return whether the gradient may be a usual feature times a ``p − y`` of rounding errors."""
    if not bool(factors.rank_one):
        return False
    if knowledge.scale_unknown:
        return True
    typical = subject.once(Typical.of)  # it runs the model, which the other checks do not
    usual = math.exp(typical.length)
    return math.isinf(typical.doubt) or float(factors.sigma) < OTHERWISE_INDISTINCT * usual


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
    error = math.hypot(share.noise(name), OTHERWISE_SUMMED_ROUNDINGS * rounding)
    known = {**share.rounding, name: error}
    answer = solve_single(subject, knowledge, replace(whole, scale=share.scale, rounding=known))
    note = f"row {row} of the head's gradient was altered and taken from the others"
    return None if answer is None else with_note(answer, note)
