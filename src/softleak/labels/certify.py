"""Issue the certificate: from the minima of a search to a status, all that fits, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import torch
from torch import Tensor

from softleak.core.factors import Factors
from softleak.core.families import (
    ANY_LABEL,
    KNOWN_FAMILIES,
    AnyLabel,
    Family,
    Mixed,
    OneHot,
    Smoothed,
    SmoothedMixed,
)
from softleak.core.results import Candidate, Recovery, Status
from softleak.labels.curve import (
    FACTOR_SEARCH_LARGEST_FACTOR,
    Curve,
    PseudoLabels,
    Rescaled,
    Segment,
    distance,
    misfit,
    on_simplex,
    other_factors_fit,
)
from softleak.labels.evidence.relation import Estimate
from softleak.labels.search import SEARCH_FIT, SEARCH_SAME, Minima

CERTIFICATE_LABEL_ROUNDINGS = 4.0  # times the rounding of a label: what its L1 error is bounded by
CERTIFICATE_PATH_POINTS = 129  # labels along a wide interval
CERTIFICATE_NARROW = 1e-3  # the relative width of an interval on which a curve is straight
UNTIED = 1e-3  # of the error of a label: how far equal entries are set apart


@dataclass(frozen=True, eq=False)
class Solutions:
    """What a search found along a curve, and what every minimum means, in the order of ``minima``.

    ``tau`` (N,) is set where the curve is a segment.
    """

    curve: Curve
    family: Family
    minima: Minima
    unknowns: int  # that the family's equations have to determine
    tau: Tensor | None = None
    relative: float = 0.0  # the rounding of what the client computed
    declared: bool = True  # the caller states that labels are of this family
    normalised: bool = False  # the model takes a log-softmax; see ``Head``

    @property
    def scaled(self) -> bool:
        """Return whether the share may be the gradient times any factor."""
        return self.tau is not None or isinstance(self.curve, Rescaled)

    @cached_property
    def features(self) -> Tensor:
        """Return the scalars (K,) of the features."""
        return self.minima.scalar if self.tau is None else self.tau[self.minima.client]

    @cached_property
    def candidates(self) -> list[Candidate]:
        """Return every minimum with its label and, if it fits, the labels of the scalars around."""
        minima, curve = self.minima, self.curve.take(self.minima.client)
        along = torch.stack([minima.scalar, minima.low, minima.high], 1)
        label, size = curve.labels(along)
        rounding = curve.errors(along, label).sum(-1).amax(-1)  # the largest along the interval
        scalar = size[:, 0] * self.features.sign()
        ends = torch.stack([minima.low, minima.high]) * (scalar / minima.scalar)
        numbers = (scalar, ends.amin(0), ends.amax(0), minima.misfit, minima.fits)
        around = (self.paths.get(i, (None, y[:1]))[1] for i, y in enumerate(label))
        errors = (CERTIFICATE_LABEL_ROUNDINGS * error for error in rounding.tolist())
        columns = (*(one.tolist() for one in numbers), label[:, 0], around, errors)
        return [Candidate(*row) for row in zip(*columns, strict=True)]

    @cached_property
    def paths(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Return the scalars (S,) of a search and labels (S, C) along each minimum that fits."""
        minima, found = self.minima, dict[int, tuple[Tensor, Tensor]]()
        narrow = minima.high - minima.low <= CERTIFICATE_NARROW * minima.low.abs()
        for points, some in ((3, narrow), (CERTIFICATE_PATH_POINTS, ~narrow)):
            rows = (minima.fits & some).nonzero()[:, 0]
            if not len(rows):
                continue
            low, high = minima.low[rows, None], minima.high[rows, None]
            steps = torch.linspace(0, 1, points, dtype=low.dtype, device=low.device)
            along = low * (high / low) ** steps
            labels = self.curve.take(minima.client[rows]).labels(along)[0]
            found |= zip(rows.tolist(), zip(along, labels, strict=True), strict=True)
        return found

    @cached_property
    def equations(self) -> dict[int, float]:
        """Return how many equations the family imposes on each label that fits, if it has to."""
        fitting = self.minima.fits.nonzero()[:, 0].tolist()
        if self.unknowns < 0 or not fitting:
            return dict.fromkeys(fitting, 0.0)
        labels = torch.stack([self.candidates[i].label for i in fitting])
        return dict(zip(fitting, count_equations(self.family, labels).tolist(), strict=True))

    @cached_property
    def spare(self) -> dict[int, float]:
        """Return the bits that equations test beyond the unknowns; endless where all is decided."""
        fitting = self.minima.fits.nonzero()[:, 0]
        decided = self.unknowns < 1 or isinstance(self.family, AnyLabel)
        if decided or self.declared or not len(fitting):
            return dict.fromkeys(fitting.tolist(), torch.inf)
        some, scalar = self.curve.take(self.minima.client[fitting]), self.minima.scalar[fitting]
        bits = spare_bits(some, self.family, scalar, self.unknowns)
        return dict(zip(fitting.tolist(), bits.tolist(), strict=True))

    def centred(self, row: int) -> tuple[Candidate, float]:
        """Return a wide candidate at its middle, the least wrong of its points, with its ``τ``."""
        found, (along, labels) = self.candidates[row], self.paths[row]
        ends = [(labels - end).abs().sum(-1) for end in (labels[0], labels[-1])]
        middle = int(torch.maximum(*ends).argmin())
        gain = found.scalar / float(self.minima.scalar[row])
        t, tau = float(along[middle] * gain), float(self.features[row])
        # Where a search ran over τ itself the feature moves along.
        tau = tau * (t / found.scalar if self.tau is None else 1.0)
        return replace(found, scalar=t, label=labels[middle]), tau


EQUATIONS_STEP = 1e-8  # the step of a finite difference
EQUATIONS_BESIDE = 1e-4  # how far beside a scalar the family is looked at
EQUATIONS_BLUNT_BITS = 6.0  # bits: an equation known to one part in 64 tests nothing yet
EQUATIONS_NUDGE = 1e-4  # of a scalar: how far it is moved to see which equations notice
EQUATIONS_ENTRIES = 32  # entries looked at: with more classes there are always enough equations


@torch.inference_mode()
def count_equations(family: Family, y: Tensor) -> Tensor:
    """Return (K,) the rank of what ``project`` takes from labels (K, C), less what is automatic.

    For a projection that is its trace. Entries sum to one whatever the scalar (Theorem 1), so at
    most C − 1 equations are new; with more than 32 classes those of the first 32 are counted.
    """
    classes = y.shape[-1]
    # Beside the label, where no two entries are equal and it is plain which are free.
    beside = family.project(y) + EQUATIONS_BESIDE * torch.linspace(1, 2, classes).to(y)
    looked_at = min(EQUATIONS_ENTRIES, classes)
    moves = EQUATIONS_STEP * torch.eye(looked_at, classes, dtype=y.dtype, device=y.device)
    moved = family.project(beside[:, None] + moves) - family.project(beside)[:, None]
    kept = moved.diagonal(dim1=-2, dim2=-1) / EQUATIONS_STEP
    return (1 - kept).sum(-1).round().clamp(max=classes - 1)


@torch.inference_mode()
def spare_bits(curve: Curve, family: Family, scalar: Tensor, unknowns: int) -> Tensor:
    """Return (K,) how much the equations test beyond what the unknowns absorb, in bits.

    An equation that would be off by ``d`` if ``log t`` were off by one, and is known to within
    ``e``, holds by chance with probability ``e/d``: it tests ``log2(d/e)`` bits. An equation that
    holds at every scalar (two zeros, one of them the softmax's) tests nothing, and one that is
    known to a few per cent would hold as well for a label that is nearly of the family: the first
    ``blunt_bits`` of each do not count. Each unknown makes the sharpest of the equations hold by
    itself. They are left out first, since the floor that all entries share moves with them. Nor
    does it count what a polynomial in the logits explains: where logits are small the softmax is
    one, and the unknowns can level any label that depends on them smoothly.
    """
    beside = scalar[:, None] * scalar.new_tensor([1 + EQUATIONS_NUDGE, 1 - EQUATIONS_NUDGE])
    y, _ = curve.labels(beside)
    far = distance(family, y, curve.errors(beside, y))
    (ahead, behind), (error, _) = (both.unbind(1) for both in far)
    slope = (ahead - behind) / (2 * EQUATIONS_NUDGE) / error
    absorbed = slope.abs().topk(min(unknowns, slope.shape[-1]), dim=-1).indices
    slope = slope.scatter(-1, absorbed, 0.0)
    logits = curve.logits()
    if logits is not None:  # without a polynomial in them, in units of the error
        x = logits / logits.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(logits.dtype).tiny)
        tested = (slope != 0).to(slope.dtype)
        powers = torch.stack([x**k for k in range(unknowns + 1)], -1) / error[..., None]
        columns = powers * tested[..., None]
        columns = columns / columns.norm(dim=1, keepdim=True).clamp_min(1e-300)
        basis: Tensor = torch.linalg.qr(columns).Q
        slope = (slope - (basis @ (basis.mT @ slope[..., None]))[..., 0]) * tested
    bits = (slope.abs().clamp_min(1.0).log2() - EQUATIONS_BLUNT_BITS).clamp_min(0.0)
    return bits.sum(-1)


DOUBT_COARSE = 0.5
DOUBT_LEVEL = 1e-3  # how far apart the entries of a flat label may be
DOUBT_SPARE_BITS = 24.0
DOUBT_INDISTINCT = 16.0
DOUBT_LAYERS = 1e-5  # of ``G``: a rounding that may explain that pieces of evidence disagree
WIDER = SmoothedMixed(3)  # what labels may be as well if no family is declared


class Doubt(Enum):
    """The reasons why a label that fits need not be the only one."""

    FEW = "too few classes for the assumed family to single out a label"
    PREDICTION = (
        "the label may equal the model's own prediction to within rounding, and then the gradient "
        "is made of rounding errors"
    )
    SIGN = (
        "the factor of the share is unknown: the label lies on a segment if it is positive, and "
        "elsewhere if the share is a difference of weights (after − before)"
    )
    COARSE = "the share is so coarse that rounding may have moved the label anywhere near here"
    UNSIGNED = (
        "rounding outweighs the evidence of other layers, so that even the sign of the feature is "
        "open"
    )
    FLAT = (
        "at some factor the label has all classes alike, and so has that of every loss that "
        "smooths the model's own prediction"
    )
    FACTOR = "the factor of the share is unknown, and labels at several factors fit"
    STRENGTH = (
        "the prediction is so sure that labels of the same kind fit at every factor: how much the "
        "label is smoothed or mixed can be told only if the share is known to be the gradient "
        'itself; if it is, say scale="known"'
    )
    CHANCE = "too few equations depend on the scalar to rule out that the family fits by chance"
    TWO_CLASSES = (
        "with two classes the head's gradient of a batch looks like that of one sample, and no "
        "other layer of this share shows that it is one"
    )
    STEPS = (
        "the share is larger than the gradient itself: if it is a difference of checkpoints, "
        "several steps were taken, whose predictions differ, or the learning rate was another"
    )
    ARBITRARY = (
        "read as the gradient itself, the share means a label of no simple kind; read as a "
        "multiple of the gradient it means another label, and nobody stated the factor. If it is "
        'the gradient of the plain loss itself, say scale="known" (for a file: --kind gradient)'
    )
    SCALED_DOWN = (
        "the label is almost the model's own prediction, which is the mark of a share that was "
        "scaled down by a learning rate, an average or clipping; if it is the gradient itself, "
        'say scale="known", else scale="unknown"'
    )
    UNBALANCED = (
        "the head's gradient is a product as that of one sample is, but its rows do not add up "
        "to zero: the label equals the model's own prediction to within rounding, the loss is "
        "not a softmax cross-entropy, or rows were altered"
    )
    CLIENT_UNTESTED = (
        "the label is that of the client as it was said, but it is of no simple family, and "
        "any update would have such a label: nothing bears out the steps, rate and momentum"
    )
    CLIENT_OPEN = (
        "one label fits the client as it was said, but at another rate or number of steps "
        "another label would fit as well: the model is too sure of itself to tell"
    )


def doubt_of(fitting: Sequence[int], solutions: Solutions, client: int) -> Doubt | None:
    """Return why the solutions may not be all there are, if there is a reason."""
    if max(solutions.candidates[row].rounding for row in fitting) > DOUBT_COARSE:
        return Doubt.COARSE
    if isinstance(solutions.family, AnyLabel):
        # A continuum fits, which no grid misses unless it is a surface: a curve is one path of it.
        signed = Doubt.SIGN if solutions.tau is not None else None
        return Doubt.FEW if solutions.unknowns > 1 else signed
    if solutions.unknowns < 0:
        return None
    if solutions.equations[fitting[0]] <= solutions.unknowns:
        return Doubt.FEW
    if any(_indistinct(row, solutions) for row in fitting):
        return Doubt.PREDICTION
    if _factor_open(fitting, solutions, client):
        return Doubt.FACTOR
    some_factor = solutions.scaled and not solutions.declared
    if some_factor and any(is_flat(solutions.candidates[row].label) for row in fitting):
        return Doubt.FLAT
    chance = min(solutions.spare[row] for row in fitting) < DOUBT_SPARE_BITS
    return Doubt.CHANCE if chance and not _no_other_kind(solutions, client) else None


def _indistinct(row: int, solutions: Solutions) -> bool:
    """Return whether ``p − y`` may be a few roundings of ``p``, times any unknown factor.

    A model that takes a log-softmax turns roundings ``r`` into ``r − p Σr``. That is ``Σr`` times
    ``y − p`` of the label ``y = r/Σr``, whose entries are to each other as small whole numbers.
    """
    roundings, found = DOUBT_INDISTINCT * solutions.relative, solutions.candidates[row]
    if abs(found.scalar) <= roundings:
        return True
    if solutions.declared or not solutions.scaled or not solutions.normalised:
        return False  # a prediction of another family cannot be a declared label
    largest = found.label.max()
    counts = torch.arange(1, DOUBT_INDISTINCT + 1).to(found.label)[:, None]
    parts = counts * found.label / largest
    whole = (parts - parts.round()).abs() <= counts * found.rounding / largest
    tau = abs(float(solutions.features[row]))
    return tau <= FACTOR_SEARCH_LARGEST_FACTOR * roundings and bool(whole.all(-1).any())


def _factor_open(fitting: Sequence[int], solutions: Solutions, client: int) -> bool:
    """Return whether labels at other factors fit, of more classes if no family is declared."""
    curve, family = solutions.curve, solutions.family if solutions.declared else WIDER
    found = [solutions.candidates[row] for row in fitting]
    if isinstance(curve, Segment) and not solutions.declared:
        best = curve.p.new_tensor([abs(one.scalar) for one in found])
        segment = curve.take(torch.full_like(best, client, dtype=torch.long))
    elif isinstance(curve, Rescaled):
        factors = [float(solutions.features[row]) for row in fitting]
        pairs = zip(factors, found, strict=True)
        along = [tau * t / f.scalar for tau, f in pairs for t in (f.scalar, f.low, f.high)]
        t = curve.pseudo.u.new_tensor(along)
        mine = curve.take(torch.full_like(t, client, dtype=torch.long))
        segment = Segment.at(mine.pseudo, t, torch.zeros_like(t))
        best = mine.labels(t[:, None])[1][:, 0]
    else:
        return False
    return other_factors_fit(segment, family, best, SEARCH_FIT)


def is_flat(label: Tensor) -> bool:
    """Return whether all classes are alike in a label (C,)."""
    return float(label.max() - label.min()) <= DOUBT_LEVEL


def _no_other_kind(solutions: Solutions, client: int) -> bool:
    """Return whether every label that fits, of whatever kind, is of the family."""
    curve = solutions.curve
    if not isinstance(curve, PseudoLabels):
        return False
    mine = curve.take(solutions.minima.client.new_tensor([client]))
    for rows, grid in mine.interval().grids():
        each = mine.take(torch.zeros_like(rows))
        of_any_kind = misfit(each, ANY_LABEL, grid) <= SEARCH_FIT
        if bool((of_any_kind & (misfit(each, solutions.family, grid) > SEARCH_FIT)).any()):
            return False
    return True


def certify(
    solutions: Solutions, factors: Factors, verdict: Estimate, tolerance: float
) -> Iterator[Recovery]:
    """Yield one recovery per client, in their order."""
    by_client: list[list[int]] = [[] for _ in factors.sigma]
    for row, client in enumerate(solutions.minima.client.tolist()):
        by_client[client].append(row)
    for client, rows in enumerate(by_client):
        kept = _merged(rows, solutions.candidates)
        yield _judge(kept, solutions, factors, verdict, client, tolerance)


def _merged(rows: Sequence[int], candidates: Sequence[Candidate]) -> list[int]:
    """Sort solutions, best first, and drop those whose interval meets that of a better one."""

    def meet(a: Candidate, b: Candidate) -> bool:
        slack = SEARCH_SAME * abs(a.scalar)
        return a.fits and a.low - slack <= b.high and b.low - slack <= a.high

    kept: list[int] = []
    for row in sorted(rows, key=lambda row: candidates[row].misfit):
        if not any(meet(candidates[one], candidates[row]) for one in kept):
            kept.append(row)
    return kept


def _judge(
    rows: Sequence[int], solutions: Solutions, factors: Factors, verdict: Estimate, client: int,
    tolerance: float,
) -> Recovery:  # fmt: skip
    candidates = tuple(solutions.candidates[row] for row in rows)
    fitting = [row for row in rows if solutions.candidates[row].fits]
    evidence, family = verdict.pieces[client], solutions.family
    if not fitting:
        words = _why_none(family, evidence != ())
        return Recovery(Status.NO_SOLUTION, words, candidates=candidates, evidence=evidence)
    doubt = Doubt.UNSIGNED if verdict.unsigned(client) else doubt_of(fitting, solutions, client)
    conflicts = [piece.parameter for piece in verdict.conflicts(client)]
    complete = doubt is None and not conflicts
    t, tau = solutions.candidates[fitting[0]], float(solutions.features[fitting[0]])
    if t.width > tolerance:
        t, tau = solutions.centred(fitting[0])
    label = on_simplex(family.project(t.label))
    found = [one for one in candidates if one.fits]
    every = torch.cat([one.labels for one in found])
    error = float((every - label).abs().sum(-1).max()) + max(one.rounding for one in found)
    alone = len(found) == 1 and complete
    unique = alone and solutions.equations[fitting[0]] > solutions.unknowns
    unique = unique and max(t.width, error) <= tolerance
    decided = bool(verdict.decided[client])
    if conflicts:
        coarse = bool(factors.explained[client] > DOUBT_LAYERS)
        words = _why_doubted(", ".join(conflicts), decided, coarse)
    elif unique:
        by = ["evidence from other layers"] if decided else []
        if not isinstance(family, AnyLabel):
            by.append(f"the family: it is assumed to be {describe_family(family)}")
        words = f"one label explains the gradient of the cross-entropy loss, by {' and '.join(by)}"
    else:
        words = _why_open(doubt, found, error, tolerance)
    # The relative error of τ, from the width of the search or from the evidence.
    of_tau = max(t.high - t.scalar, t.scalar - t.low) / abs(t.scalar)
    if solutions.tau is not None:
        of_tau = float(verdict.error[client] / verdict.scalar[client].abs())
    return Recovery(
        Status.UNIQUE if unique else Status.AMBIGUOUS, words, label,
        factors.sigma[client] / tau * factors.v[client], t.scalar, error,
        of_tau + factors.feature_error(client),
        tau / t.scalar, family=simplest_family(label, error), candidates=candidates,
        evidence=evidence, complete=complete,
    )  # fmt: skip


def simplest_family(label: Tensor, error: float) -> Family:
    """Return the simplest known family of a label (C,) to within its error; ties are set apart."""
    places = torch.arange(len(label), dtype=label.dtype, device=label.device) / len(label)
    apart = label - UNTIED * error * places
    for family in KNOWN_FAMILIES:
        if float((apart - family.project(apart)).abs().sum()) <= error:
            return family
    return ANY_LABEL


FAMILY_NAMES: Mapping[object, str] = {
    OneHot(): "one-hot",
    Smoothed(): "smoothed",
    Mixed(2): "a mix of two classes",
    SmoothedMixed(2): "a smoothed mix of two classes",
}


def describe_family(family: object) -> str:
    """Return what labels of a family are, in words."""
    if family == SmoothedMixed(2):
        return "one-hot, smoothed or a smoothed mix of two classes"
    known = next((words for one, words in FAMILY_NAMES.items() if one == family), None)
    return known or f"of the family {family}"


def _why_doubted(names: str, decided: bool, coarse: bool) -> str:
    """Return what it means that pieces of evidence disagree with the rest, or with a label."""
    if coarse:
        return (
            f"the share is so coarse that its layers disagree ({names}): rounding of the "
            "weights outweighs the step"
        )
    if decided:
        return f"pieces of evidence disagree: {names} contradicts the rest; the share was altered"
    return (
        f"a label of the assumed family fits, but the evidence of {names} does not hold: the "
        "share was altered, carries noise, or was computed in another mode of the model"
    )


def _why_open(
    doubt: Doubt | None, found: Sequence[Candidate], error: float, tolerance: float
) -> str:
    """Return what fits where that is no proof of one label."""
    words = solutions_in_words(found, error, tolerance)
    if doubt is not None:
        return f"{doubt.value}: {words}, or others"
    if len(found) == 1 and found[0].width <= tolerance:
        return words
    return f"explained equally well as the gradient of the cross-entropy loss: {words}"


def solutions_in_words(found: Sequence[Candidate], error: float, tolerance: float) -> str:
    """Return how many candidates fit, and how far apart their labels are."""
    count, width = len(found), max(one.width for one in found)
    if count == 1 and width <= tolerance:
        return f"one solution, whose label is known to {error:.2g} in L1"
    if width > tolerance:
        several = "" if count == 1 else f"{count} separate solutions, among them "
        return f"{several}a continuum of scalars whose labels differ by up to {width:.2g} in L1"
    labels = torch.stack([one.label for one in found])
    apart = float(torch.cdist(labels, labels, p=1).max())
    return f"{count} separate solutions, whose labels are up to {apart:.2g} apart in L1"


def _why_none(family: Family, evidence: bool) -> str:
    """Return why no scalar fits."""
    if isinstance(family, AnyLabel) and evidence:
        return (
            "the evidence gives a scalar whose label is no probability distribution: the share was "
            'scaled (try scale="unknown"), altered, or computed in another mode of the model'
        )
    return f"no scalar gives a label that is {describe_family(family)}"


def with_note(answer: Recovery, note: str) -> Recovery:
    """Return an answer whose message ends with a further remark."""
    return replace(answer, reason=f"{answer.message}; {note}")
