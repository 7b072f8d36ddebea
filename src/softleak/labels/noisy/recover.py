"""Shares that are not rank one to within rounding: one noisy row, noise, or several samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from softleak.labels.evidence.relation import Blurred, NoisyRelation, log_laplace, log_normal
from softleak.labels.families import AnyLabel, Family
from softleak.labels.noisy.answer import Draws, answer, fits
from softleak.labels.noisy.broad import broad_draws
from softleak.labels.noisy.features import Typical
from softleak.labels.noisy.integrate import quadrature
from softleak.labels.noisy.patches import Patches, patches_of
from softleak.labels.noisy.posterior import Evidence, Posterior
from softleak.labels.noisy.signal import Signal
from softleak.labels.noisy.spectrum import Spectrum
from softleak.labels.pseudo import LARGEST
from softleak.labels.solve import WIDEST, Problem
from softleak.results import Recovery, Status
from softleak.share import GradientShare

SMALLEST = 1e-4  # a smaller t changes no label by as much as noise does
KNOWN = 0.95  # of u, for its neighbourhood to be small
SURE = 0.999  # of u, if |t| is to be told as well: a small one hides in the noise of p
LABELS = 32  # draws at every scalar
EVERY, LEADING = 12, 4  # with more classes, only those that lead in some way are looked at
DEEPEST, FLATTEST = 1e-2, 1e4  # of the logits' size: τ of an unknown scale, nothing else known
WIDTHS = 8.0  # of the typical length: how far from it τ of an unknown scale may be


def recover_noisy(
    problem: Problem, typical: Typical, share: GradientShare, G: Tensor, spectrum: Spectrum
) -> Recovery:
    """The most probable label behind one share, whose head gradient ``G`` (C, I) is noisy."""
    signal = Signal.of(problem.head, *spectrum.light(G, typical.direction), typical)
    if signal.sigma == 0:
        return Recovery(
            Status.NO_SOLUTION,
            "all rows of the head's gradient are alike, which is noise alone: nothing of a sample "
            "is in it",
            noise=spectrum.noise,
        )
    # Other layers speak of ``Wᵀu``: to whoever hardly knows ``u`` they say nothing.
    known = signal.known >= KNOWN
    evidence = tuple(_evidence(problem, share, signal, spectrum)) if known else ()
    families = (
        (problem.family,) if problem.family else (WIDEST, *([AnyLabel()] if evidence else []))
    )
    for family in families:
        posterior = Posterior(
            signal, problem.head.b, _patches(family, signal), problem.scale_unknown, typical,
            evidence,
        )  # fmt: skip
        enough = signal.known >= SURE if problem.scale_unknown else known
        if not enough and typical.doubt < math.inf:
            return answer(posterior, broad_draws(posterior), spectrum)
        tau, width = quadrature(posterior.density, *_bounds(posterior))
        points = posterior.at(tau, LABELS)
        if fits(posterior, points) or (not spectrum.even and bool(points.log.isfinite().any())):
            return answer(posterior, Draws.of(posterior, points, tau, width), spectrum)
    return Recovery(
        Status.NO_SOLUTION,
        f"noise of standard deviation {spectrum.noise:.2g} on the head's gradient does not explain "
        f"how far every label of the family {families[-1]} is from it",
        noise=spectrum.noise,
    )


def _evidence(
    problem: Problem, share: GradientShare, signal: Signal, spectrum: Spectrum
) -> Iterator[Evidence]:
    """The log likelihood of every relation that can be weighed and whose gradient was sent."""
    W = problem.head.W.double()
    seen = Blurred(
        signal.u, signal.u_covariance.diagonal(),
        W.T @ signal.u, (W * (signal.u_covariance @ W)).sum(0).clamp_min(0.0),
        signal.x, torch.full_like(signal.x, signal.x_variance), spectrum.noise,
        log_laplace if spectrum.heavy else log_normal,
    )  # fmt: skip
    for relation in problem.relations:
        if relation.parameter in share and isinstance(relation, NoisyRelation):
            g = share[relation.parameter].to(W)
            yield partial(relation.log_likelihood, g, seen)


def _patches(family: Family, signal: Signal) -> Patches:
    """The family's simplices over all classes, or the few that could be in the label."""
    classes = len(signal.u)
    likely = set(range(classes))
    if classes > EVERY:
        orders = [part.argsort()[:LEADING] for part in (signal.u, -signal.u, -signal.a, signal.a)]
        likely = set(torch.cat(orders).tolist())
    return patches_of(family, classes, sorted(likely))


def _bounds(posterior: Posterior) -> tuple[float, float]:
    """The smallest and the largest |τ| to look at."""
    if not posterior.scale_unknown:
        return SMALLEST, LARGEST
    typical, signal = posterior.typical, posterior.signal
    if typical.doubt < math.inf and signal.along > 0:
        middle, reach = signal.along / math.exp(typical.length), math.exp(WIDTHS * typical.doubt)
        return middle / reach, middle * reach
    size = float(signal.a.abs().max()) or 1.0  # of a head of zeros any τ says the same
    return DEEPEST * size, FLATTEST * size
