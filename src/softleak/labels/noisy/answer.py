"""From a posterior to a recovery: the most probable class, its label, and how sure both are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.labels.noisy.draws import Draws
from softleak.labels.noisy.posterior import Points, Posterior
from softleak.labels.noisy.spectrum import Spectrum
from softleak.results import Recovery, Status


@dataclass(frozen=True)
class AnswerSettings:
    """What a posterior has to say for an answer to be called probable.

    Attributes:
        sure: a class that is less probable than this is a guess.
        held: the probability with which an interval holds the entry it belongs to.
        unfit: a family does not fit if a misfit as large as the one seen is less probable.
    """

    sure: float = 0.9
    held: float = 0.9
    unfit: float = 1e-6


ANSWER = AnswerSettings()


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
    interval = draws.interval(ANSWER.held)
    far = (
        float(kind.quantile((kind.labels - label).abs().sum(-1), ANSWER.held))
        for kind in draws.kinds(1 - ANSWER.held)
    )
    error = max(*far, _to_the_edge(label, interval))
    spread = float((mine.weight * (mine.tau / tau - 1).square()).sum())
    blur = signal.x_variance * len(signal.x) / signal.sigma**2
    return Recovery(
        Status.PROBABLE if spectrum.even and confidence >= ANSWER.sure else Status.GUESS,
        _message(spectrum, index, confidence),
        label=label,
        feature=signal.x / tau,
        scalar=size if tau > 0 else -size,
        error=error if spectrum.even else math.inf,
        feature_error=(spread + blur) ** 0.5,
        scale=abs(tau) / size,
        noise=spectrum.noise,
        confidence=confidence if spectrum.even else None,
        interval=interval if spectrum.even else None,
    )


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
    return bool(torch.special.gammaincc(half, misfit / 2) > ANSWER.unfit)


def _message(spectrum: Spectrum, index: int, confidence: float) -> str:
    """Say how much noise was found, which class is the most probable, and how probable it is."""
    found = f"noise of standard deviation {spectrum.noise:.2g} on the head's gradient"
    if not spectrum.even:
        return (
            f"what one sample cannot explain ({found}) is not independent noise of equal size: the "
            f"share was pruned, rounded or altered otherwise; class {index} is a guess, and its "
            "probability is not known"
        )
    sure = "most probable" if confidence >= ANSWER.sure else "a guess"
    return f"{found}; class {index} is {sure}, with a probability of {confidence:.3g}"
