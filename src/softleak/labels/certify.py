"""Issue the certificate: from the minima of a search to a status and all that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.core.factors import Factors
from softleak.core.families import KNOWN_FAMILIES, AnyLabel, Family, SmoothedMixed
from softleak.core.results import Candidate, Recovery, Status
from softleak.labels.curve import Curve, misfit, on_simplex, residual
from softleak.labels.evidence.combine import CombinedEvidence
from softleak.labels.messages import Doubt, Fitting, why, why_none
from softleak.labels.pseudo import PseudoLabels
from softleak.labels.scale import FACTOR_SEARCH_LARGEST_FACTOR, Rescaled, Segment, other_factors_fit
from softleak.labels.search import SEARCH_FIT, SEARCH_SAME, Minima


@dataclass(frozen=True, eq=False)
class Solutions:
    """What a search found along a curve. ``tau`` (N,) is set where the curve is a segment."""

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


@dataclass(frozen=True, eq=False)
class SolutionAt:
    """A candidate and the scalar of its feature.

    ``path`` (S,) are the scalars of the labels along it, ``equations`` how many its family imposes.
    """

    candidate: Candidate
    tau: float
    path: Tensor
    equations: float
    spare: float  # bits that the equations test beyond what the unknowns absorb
    moves: bool  # whether the feature's scalar is the one searched for


# What counts which equations test a solution.
EQUATIONS_STEP = 1e-8  # the step of a finite difference
EQUATIONS_BESIDE = 1e-4  # how far beside a scalar the family is looked at
EQUATIONS_BLUNT_BITS = 6.0  # bits: an equation known to one part in 64 tests nothing yet
EQUATIONS_NUDGE = 1e-4  # of a scalar: how far it is moved to see which equations notice
EQUATIONS_ENTRIES = 32  # entries looked at: with more classes there are always enough equations


@torch.inference_mode()
def count_equations(family: Family, y: Tensor) -> Tensor:
    """Return (K,) the rank of what ``project`` takes away around labels (K, C), less what is
    automatic.

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
    (ahead, behind), (error, _) = (both.unbind(1) for both in residual(curve, family, beside))
    slope = (ahead - behind) / (2 * EQUATIONS_NUDGE) / error
    absorbed = slope.abs().topk(min(unknowns, slope.shape[-1]), dim=-1).indices
    slope = slope.scatter(-1, absorbed, 0.0)
    logits = curve.logits()
    if logits is not None:
        slope = _without_polynomial(slope, logits, error, unknowns)
    bits = (slope.abs().clamp_min(1.0).log2() - EQUATIONS_BLUNT_BITS).clamp_min(0.0)
    return bits.sum(-1)


def _without_polynomial(values: Tensor, logits: Tensor, error: Tensor, degree: int) -> Tensor:
    """Return what a polynomial in the logits leaves of ``values`` (K, C), in units of ``error``."""
    x = logits / logits.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(logits.dtype).tiny)
    tested = (values != 0).to(values.dtype)
    powers = torch.stack([x**k for k in range(degree + 1)], -1) / error[..., None]
    columns = powers * tested[..., None]
    columns = columns / columns.norm(dim=1, keepdim=True).clamp_min(1e-300)
    basis: Tensor = torch.linalg.qr(columns).Q
    return (values - (basis @ (basis.mT @ values[..., None]))[..., 0]) * tested


# What decides when a label that fits need not be the only one.
DOUBT_COARSE = 0.5
DOUBT_LEVEL = 1e-3  # how far apart the entries of a flat label may be
DOUBT_SPARE_BITS = 24.0
DOUBT_INDISTINCT = 16.0


WIDER = SmoothedMixed(3)  # what labels may be as well if no family is declared


def doubt_of(fitting: list[SolutionAt], solutions: Solutions, client: int) -> Doubt | None:
    """Return why the solutions may not be all there are, if there is a reason."""
    if any(f.candidate.rounding > DOUBT_COARSE for f in fitting):
        return Doubt.COARSE
    if isinstance(solutions.family, AnyLabel) or solutions.unknowns < 0:
        return _doubt_without_equations(solutions)
    if fitting[0].equations <= solutions.unknowns:
        return Doubt.FEW
    if any(_indistinct(f, solutions) for f in fitting):
        return Doubt.PREDICTION
    if _factor_open(fitting, solutions, client):
        return Doubt.FACTOR
    if (
        not solutions.declared
        and solutions.scaled
        and any(is_flat(f.candidate.label) for f in fitting)
    ):
        return Doubt.FLAT
    chance = not solutions.declared and any(f.spare < DOUBT_SPARE_BITS for f in fitting)
    return Doubt.CHANCE if chance and not _no_other_kind(solutions, client) else None


def _doubt_without_equations(solutions: Solutions) -> Doubt | None:
    """Return the doubt where a continuum fits, which no grid misses unless it is a surface."""
    if not isinstance(solutions.family, AnyLabel):
        return None
    if solutions.unknowns > 1:
        return Doubt.FEW  # the curve is one path through the set
    return Doubt.SIGN if solutions.tau is not None else None


def _indistinct(found: SolutionAt, solutions: Solutions) -> bool:
    """Return whether ``p − y`` may be a few roundings of ``p``, times any unknown factor."""
    roundings = DOUBT_INDISTINCT * solutions.relative
    if abs(found.candidate.scalar) <= roundings:
        return True
    if solutions.declared:
        return False  # a prediction of another family cannot be the label
    blown_up = solutions.scaled and abs(found.tau) <= FACTOR_SEARCH_LARGEST_FACTOR * roundings
    return blown_up and solutions.normalised and _of_roundings(found)


def _of_roundings(found: SolutionAt) -> bool:
    """Return whether roundings of the prediction look like this label behind a log-softmax.

    A model that takes a log-softmax turns roundings ``r`` into ``r − p Σr``. That is ``Σr`` times
    ``y − p`` of the label ``y = r/Σr``, whose entries are to each other as small whole numbers.
    """
    candidate = found.candidate
    largest = candidate.label.max()
    counts = torch.arange(1, DOUBT_INDISTINCT + 1).to(candidate.label)[:, None]
    parts = counts * candidate.label / largest
    whole = (parts - parts.round()).abs() <= counts * candidate.rounding / largest
    return bool(whole.all(-1).any())


def _factor_open(fitting: list[SolutionAt], solutions: Solutions, client: int) -> bool:
    """Return whether labels at other factors fit as well.

    The labels that were found are then a part of a larger set. A family that is not declared says
    little of how many classes a label has: where the prediction is one-hot, a mix of two classes
    lies on a line of mixes of three.
    """
    curve, family = solutions.curve, solutions.family if solutions.declared else WIDER
    if isinstance(curve, Segment) and not solutions.declared:
        best = curve.p.new_tensor([abs(f.candidate.scalar) for f in fitting])
        segment = curve.take(torch.full_like(best, client, dtype=torch.long))
    elif isinstance(curve, Rescaled):
        ends = [(f, (f.candidate.scalar, f.candidate.low, f.candidate.high)) for f in fitting]
        along = [f.tau * one / f.candidate.scalar for f, three in ends for one in three]
        t = curve.pseudo.u.new_tensor(along)
        segment, best = curve.take(torch.full_like(t, client, dtype=torch.long)).segment(t)
    else:
        return False
    return other_factors_fit(segment, family, best, SEARCH_FIT)


def is_flat(label: Tensor) -> bool:
    """Return whether all classes are alike in a label (C,)."""
    return float(label.max() - label.min()) <= DOUBT_LEVEL


def _no_other_kind(solutions: Solutions, client: int) -> bool:
    """Return whether every label that fits, of whatever kind, is of the family.

    Where the softmax is one-hot to the last bit that is so: the labels of a whole interval fit, and
    beyond it an entry turns negative.
    """
    curve = solutions.curve
    if not isinstance(curve, PseudoLabels):
        return False
    mine = curve.take(solutions.minima.client.new_tensor([client]))
    for rows, grid in mine.interval().grids():
        each = mine.take(torch.zeros_like(rows))
        of_any_kind = misfit(each, AnyLabel(), grid) <= SEARCH_FIT
        if bool((of_any_kind & (misfit(each, solutions.family, grid) > SEARCH_FIT)).any()):
            return False
    return True


# What turns minima into candidates.
CERTIFICATE_LABEL_ROUNDINGS = 4.0  # times the rounding of a label: what its L1 error is bounded by
CERTIFICATE_PATH_POINTS = 129  # labels along a wide interval
CERTIFICATE_NARROW = 1e-3  # the relative width of an interval on which a curve is straight


UNTIED = 1e-3  # of the error of a label: how far equal entries are set apart


def certify(
    solutions: Solutions, factors: Factors, verdict: CombinedEvidence, tolerance: float
) -> Iterator[Recovery]:
    """Yield one recovery per client, in their order."""
    by_client: list[list[SolutionAt]] = [[] for _ in factors.sigma]
    for client, one in _describe(solutions):
        by_client[client].append(one)
    for client, found in enumerate(by_client):
        yield _judge(_merged(found), solutions, factors, verdict, client, tolerance)


def _describe(solutions: Solutions) -> Iterator[tuple[int, SolutionAt]]:
    """Yield every minimum with its label and, if it fits, the labels of the scalars around it."""
    minima, curve = solutions.minima, solutions.curve.take(solutions.minima.client)
    along = torch.stack([minima.scalar, minima.low, minima.high], 1)
    label, size = curve.labels(along)
    rounding = curve.errors(along, label).sum(-1).amax(-1)  # the largest along the interval
    tau = minima.scalar if solutions.tau is None else solutions.tau[minima.client]
    scalar = size[:, 0] * tau.sign()
    ends = torch.stack([minima.low, minima.high]) * (scalar / minima.scalar)
    paths = _around(curve, minima, scalar / minima.scalar)
    fitting = minima.fits.nonzero()[:, 0]  # the others prove nothing, whatever their equations
    equations, spare = torch.zeros_like(scalar), torch.zeros_like(scalar)
    equations[fitting] = _equations(solutions, label[fitting, 0])
    spare[fitting] = _spare(solutions, curve.take(fitting), minima.scalar[fitting])
    rows = zip(
        minima.client.tolist(), scalar.tolist(), ends.amin(0).tolist(), ends.amax(0).tolist(),
        minima.misfit.tolist(), minima.fits.tolist(), label, tau.tolist(), rounding.tolist(),
        equations.tolist(), spare.tolist(), strict=True,
    )  # fmt: skip
    for index, (client, t, low, high, off, fits, y, feature, error, count, bits) in enumerate(rows):
        path, labels = paths[index] if fits else (scalar[:1], y[:1])
        candidate = Candidate(
            t, low, high, off, fits, y[0], labels, CERTIFICATE_LABEL_ROUNDINGS * error
        )
        yield client, SolutionAt(candidate, feature, path, count, bits, solutions.tau is None)


def _equations(solutions: Solutions, label: Tensor) -> Tensor:
    """Return the equations (K,) of the family, none where nothing is left to determine."""
    if solutions.unknowns < 0:
        return label.new_zeros(len(label))
    return count_equations(solutions.family, label)


def _spare(solutions: Solutions, curve: Curve, scalar: Tensor) -> Tensor:
    """Return the spare bits (K,) of minima: no limit where a family is declared or decided."""
    decided = solutions.unknowns < 1 or isinstance(solutions.family, AnyLabel)
    if decided or solutions.declared:
        return torch.full_like(scalar, torch.inf)
    return spare_bits(curve, solutions.family, scalar, solutions.unknowns)


def _around(curve: Curve, minima: Minima, gain: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """Return scalars (S,) times ``gain``, and labels (S, C), along each minimum that fits."""
    narrow = (
        minima.high - minima.low
    ) <= CERTIFICATE_NARROW * minima.low.abs()  # a curve is straight there
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for points, some in ((3, narrow), (CERTIFICATE_PATH_POINTS, ~narrow)):
        rows = (minima.fits & some).nonzero()[:, 0]
        if not len(rows):
            continue
        low, high = minima.low[rows, None], minima.high[rows, None]
        steps = torch.linspace(0, 1, points, dtype=low.dtype, device=low.device)
        along = low * (high / low) ** steps
        labels = curve.take(rows).labels(along)[0]
        scalars = along * gain[rows, None]
        found |= zip(rows.tolist(), zip(scalars, labels, strict=True), strict=True)
    return found


def _merged(found: list[SolutionAt]) -> list[SolutionAt]:
    """Sort the solutions, best first, and drop those whose interval meets that of a better one."""
    kept: list[SolutionAt] = []
    for one in sorted(found, key=lambda f: f.candidate.misfit):
        if not any(k.candidate.fits and _meet(k.candidate, one.candidate) for k in kept):
            kept.append(one)
    return kept


def _meet(a: Candidate, b: Candidate) -> bool:
    slack = SEARCH_SAME * abs(a.scalar)
    return a.low - slack <= b.high and b.low - slack <= a.high


def _judge(
    found: list[SolutionAt], solutions: Solutions, factors: Factors, verdict: CombinedEvidence,
    client: int, tolerance: float,
) -> Recovery:  # fmt: skip
    candidates = tuple(f.candidate for f in found)
    fitting = [f for f in found if f.candidate.fits]
    evidence = verdict.pieces[client]
    if not fitting:
        return Recovery(
            Status.NO_SOLUTION, why_none(solutions.family, evidence != ()),
            candidates=candidates, evidence=evidence,
        )  # fmt: skip
    best = fitting[0]
    doubt = Doubt.UNSIGNED if verdict.unsigned(client) else doubt_of(fitting, solutions, client)
    conflicts = verdict.conflicts(client)
    complete = doubt is None and not conflicts
    if best.candidate.width > tolerance:
        best = _centred(best)
    label = on_simplex(solutions.family.project(best.candidate.label))
    every = torch.cat([f.candidate.labels for f in fitting])
    error = float((every - label).abs().sum(-1).max()) + max(f.candidate.rounding for f in fitting)
    alone = len(fitting) == 1 and complete and best.equations > solutions.unknowns
    unique = alone and max(best.candidate.width, error) <= tolerance
    all_fitting = Fitting([f.candidate for f in fitting], error, tolerance)
    decided, coarse = bool(verdict.decided[client]), bool(verdict.coarse[client])
    words = why(unique, doubt, all_fitting, solutions.family, conflicts, decided, coarse)
    t = best.candidate
    return Recovery(
        status=Status.UNIQUE if unique else Status.AMBIGUOUS,
        reason=words,
        label=label,
        feature=factors.sigma[client] / best.tau * factors.v[client],
        scalar=t.scalar,
        error=error,
        feature_error=_feature_error(t, solutions, verdict, client) + factors.feature_error(client),
        scale=best.tau / t.scalar,
        family=simplest_family(label, error),
        candidates=candidates,
        evidence=evidence,
        complete=complete,
    )


def _feature_error(
    t: Candidate, solutions: Solutions, verdict: CombinedEvidence, client: int
) -> float:
    """Return the relative error of τ, from the evidence or from the width of the search."""
    if solutions.tau is not None:
        return float(verdict.error[client] / verdict.scalar[client].abs())
    return max(t.high - t.scalar, t.scalar - t.low) / abs(t.scalar)


def _centred(found: SolutionAt) -> SolutionAt:
    """Represent a wide candidate by its middle, the least wrong of its points."""
    labels = found.candidate.labels
    ends = [(labels - end).abs().sum(-1) for end in (labels[0], labels[-1])]
    middle = int(torch.maximum(*ends).argmin())
    t = float(found.path[middle])
    # Where a search ran over τ itself the feature moves along.
    tau = found.tau * (t / found.candidate.scalar if found.moves else 1.0)
    candidate = replace(found.candidate, scalar=t, label=labels[middle])
    return replace(found, candidate=candidate, tau=tau)


def simplest_family(label: Tensor, error: float) -> Family:
    """Return the simplest known family that a label (C,) belongs to, to within its error in L1.

    A family leaves tied entries free together. So that two equal halves are not called one-hot,
    entries are first set apart by a thousandth of the error.
    """
    places = torch.arange(len(label), dtype=label.dtype, device=label.device) / len(label)
    apart = label - UNTIED * error * places
    for family in KNOWN_FAMILIES:
        if float((apart - family.project(apart)).abs().sum()) <= error:
            return family
    return AnyLabel()
