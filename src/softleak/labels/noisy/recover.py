"""The most probable label behind a share of one sample that carries noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from softleak.core.errors import LabelError
from softleak.core.families import AnyLabel, Family, Simplices, simplices_of
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.evidence.probes import evidence_for
from softleak.labels.evidence.relation import Blurred, NoisyRelation, log_laplace, log_normal
from softleak.labels.noisy.posterior import LogLikelihood, Points, Posterior
from softleak.labels.noisy.sampling import Draws, draw_from_prior, quadrature
from softleak.labels.noisy.spectrum import Signal, Spectrum, Typical
from softleak.labels.pseudo import LARGEST
from softleak.labels.solve import WIDEST

ANSWER_SURE = 0.9  # a class that is less probable than this is a guess
ANSWER_HELD = 0.9  # the probability with which an interval holds the entry it belongs to
ANSWER_UNFIT = 1e-6  # a family does not fit if a misfit as large as the one seen is less probable


def answer(posterior: Posterior, draws: Draws, spectrum: Spectrum) -> Recovery:
    """Return the recovery that the draws of a posterior amount to.

    The label is the mean of those labels in which the most probable class leads. Interval and error
    are taken over all draws, whatever class leads. Where the noise is not what the model assumes,
    these figures are not calibrated and are left out.
    """
    signal = posterior.signal
    probable = draws.classes()
    index = int(probable.argmax())
    confidence = min(float(probable[index]), 1.0)
    mine = draws.of_class(index)
    label = mine.label_weight @ mine.labels
    label = label / label.sum()
    tau = float(mine.quantile(mine.tau, 0.5))
    size = float(mine.quantile(mine.size, 0.5))
    interval = draws.interval(ANSWER_HELD)
    far = (
        float(kind.quantile((kind.labels - label).abs().sum(-1), ANSWER_HELD))
        for kind in draws.kinds(1 - ANSWER_HELD)
    )
    error = max(*far, _to_the_edge(label, interval))
    spread = float((mine.weight * (mine.tau / tau - 1).square()).sum())
    blur = signal.x_variance * len(signal.x) / signal.sigma**2
    return Recovery(
        Status.PROBABLE if spectrum.even and confidence >= ANSWER_SURE else Status.GUESS,
        _message(spectrum, index, confidence), label=label, feature=signal.x / tau,
        scalar=size if tau > 0 else -size, error=error if spectrum.even else math.inf,
        feature_error=(spread + blur) ** 0.5, scale=abs(tau) / size, noise=spectrum.noise,
        confidence=confidence if spectrum.even else None,
        interval=interval if spectrum.even else None,
    )  # fmt: skip


def _to_the_edge(label: Tensor, interval: Tensor) -> float:
    """Return how far, in L1, the label is from itself without the entries that may well be zero."""
    edge = torch.where(interval[0] == 0, 0.0, label)
    if not bool(edge.any()):
        return 0.0
    return float((edge / edge.sum() - label).abs().sum())


def fits(posterior: Posterior, points: Points) -> bool:
    """Return whether noise explains how far the best label is from the family.

    The squared misfit has a χ² distribution with as many degrees of freedom as there are equations
    beyond the unknowns. Without any such equation some member of the family's plane always agrees
    with the gradient. It has to be a label then, to within the noise of as many equations as there
    are.
    """
    if not points.log.isfinite().any():
        return False
    label = int(points.log.argmax())
    misfit = points.misfit.flatten()[label // points.log.shape[-1]]
    equations = len(posterior.b) - 2
    freedom = equations - points.weights.shape[-1] - int(posterior.scale_unknown)
    if freedom < 1:
        misfit, freedom = misfit + points.inside.flatten()[label], max(equations, 1)
    half = misfit.new_tensor(freedom / 2)
    return bool(torch.special.gammaincc(half, misfit / 2) > ANSWER_UNFIT)


def _message(spectrum: Spectrum, index: int, confidence: float) -> str:
    """Say how much noise was found, which class is the most probable, and how probable it is."""
    found = f"noise of standard deviation {spectrum.noise:.2g} on the head's gradient"
    if not spectrum.even:
        return (
            f"what one sample cannot explain ({found}) is not independent noise of equal size: the "
            f"share was pruned, rounded or altered otherwise; class {index} is a guess, and its "
            "probability is not known"
        )
    sure = "most probable" if confidence >= ANSWER_SURE else "a guess"
    return f"{found}; class {index} is {sure}, with a probability of {confidence:.3g}"


BEHIND_NOISE_SMALLEST_T = 1e-4  # a smaller |t| changes no label by as much as noise does
BEHIND_NOISE_KNOWN = 0.95  # squared length of the mean of ``u`` whose neighbourhood is Gaussian
BEHIND_NOISE_KNOWN_SCALED = 0.999  # the same if |t| is unknown too: it hides in the noise of ``p``
BEHIND_NOISE_LABELS = 32  # draws of labels at every scalar
BEHIND_NOISE_EVERY = 12  # the number of classes up to which all of them may be in the label
BEHIND_NOISE_LEADING = 4  # with more, as many are taken from each of the orders that suggest one
BEHIND_NOISE_DEEPEST = 1e-2  # of the logits: the smallest |τ| of an unknown scale, if all is open
BEHIND_NOISE_FLATTEST = 1e4  # the largest |τ| likewise
BEHIND_NOISE_WIDTHS = 8.0  # standard deviations of the typical length that such a τ may be off


def recover_noisy(
    subject: Subject, knowledge: Knowledge, share: GradientShare, G: Tensor, spectrum: Spectrum
) -> Recovery:
    """Recover the most probable label behind one share, whose head gradient ``G`` (C, I) is noisy.

    PROBABLE or a GUESS, or NO_SOLUTION if noise does not explain how far the family is from the
    gradient. A family that offers no simplices gets a GUESS without a label, whose message says
    what to add.
    """
    typical = subject.once(Typical.of)
    signal = Signal.of(subject.head, *spectrum.light(G, typical.direction), typical)
    if signal.sigma == 0:
        return Recovery(
            Status.NO_SOLUTION,
            "all rows of the head's gradient are alike, which is noise alone: nothing of a sample "
            "is in it",
            noise=spectrum.noise,
        )
    # Other layers depend on ``Wᵀu``. Where ``u`` is hardly known they say nothing.
    known = signal.known >= BEHIND_NOISE_KNOWN
    evidence = tuple(_evidence(subject, knowledge, share, signal, spectrum)) if known else ()
    families = [knowledge.family] if knowledge.family else [WIDEST, *[AnyLabel()] * bool(evidence)]
    noise = f"noise of standard deviation {spectrum.noise:.2g} on the head's gradient"
    for family in families:
        try:
            simplices = _simplices(family, signal)
        except LabelError as error:
            why = f"behind which a label needs a probability, and none is computed: {error}"
            return Recovery(Status.GUESS, f"{noise}, {why}", noise=spectrum.noise)
        b, scaled = subject.head.b, knowledge.scale_unknown
        found = _answer(Posterior(signal, b, simplices, scaled, typical, evidence), spectrum)
        if found is not None:
            return found
    why = f"does not explain how far every label of the family {families[-1]} is from it"
    return Recovery(Status.NO_SOLUTION, f"{noise} {why}", noise=spectrum.noise)


def _answer(posterior: Posterior, spectrum: Spectrum) -> Recovery | None:
    """Integrate the posterior of one family; return None if the family does not fit."""
    scaled = posterior.scale_unknown
    enough = BEHIND_NOISE_KNOWN_SCALED if scaled else BEHIND_NOISE_KNOWN
    if posterior.signal.known < enough and posterior.typical.doubt < math.inf:
        return answer(posterior, draw_from_prior(posterior), spectrum)
    tau, width = quadrature(posterior.density, *_bounds(posterior))
    points = posterior.at(tau, BEHIND_NOISE_LABELS)
    if fits(posterior, points) or (not spectrum.even and bool(points.log.isfinite().any())):
        return answer(posterior, Draws.of(posterior, points, tau, width), spectrum)
    return None


def _evidence(
    subject: Subject, knowledge: Knowledge, share: GradientShare, signal: Signal, spectrum: Spectrum
) -> Iterator[LogLikelihood]:
    """Yield the log likelihood of every relation that has one and whose gradient was sent."""
    W = subject.head.W.double()
    seen = Blurred(
        signal.u, signal.u_covariance.diagonal(),
        W.T @ signal.u, (W * (signal.u_covariance @ W)).sum(0).clamp_min(0.0),
        signal.x, torch.full_like(signal.x, signal.x_variance), spectrum.noise,
        log_laplace if spectrum.heavy else log_normal,
    )  # fmt: skip
    for relation in evidence_for(subject, knowledge):
        if relation.parameter in share and isinstance(relation, NoisyRelation):
            g = share[relation.parameter].to(W)
            yield partial(relation.log_likelihood, g, seen)


def _simplices(family: Family, signal: Signal) -> Simplices:
    """Return the family's simplices over all classes, or over the few that may be in the label."""
    classes = len(signal.u)
    likely = set(range(classes))
    if classes > BEHIND_NOISE_EVERY:
        parts = (signal.u, -signal.u, -signal.a, signal.a)
        likely = set(torch.cat([p.argsort()[:BEHIND_NOISE_LEADING] for p in parts]).tolist())
    return simplices_of(family, classes, sorted(likely))


def _bounds(posterior: Posterior) -> tuple[float, float]:
    """Return the smallest and the largest |τ| to look at."""
    if not posterior.scale_unknown:
        return BEHIND_NOISE_SMALLEST_T, LARGEST
    typical, signal = posterior.typical, posterior.signal
    if typical.doubt < math.inf and signal.along > 0:
        middle = signal.along / math.exp(typical.length)
        reach = math.exp(BEHIND_NOISE_WIDTHS * typical.doubt)
        return middle / reach, middle * reach
    size = float(signal.a.abs().max()) or 1.0  # With a head of zeros every τ says the same.
    return BEHIND_NOISE_DEEPEST * size, BEHIND_NOISE_FLATTEST * size
