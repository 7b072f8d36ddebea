"""This module names the client that would explain an update which the assumed one does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch

from softleak.factors import RANK, factor
from softleak.families import AnyLabel
from softleak.labels.local.head_alone import trains_head_alone
from softleak.labels.local.recipe import SgdSteps, mean_gradient
from softleak.labels.signs import is_sign_pattern
from softleak.results import Recovery, Status
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True)
class OtherClients:
    """These clients are tried where the assumed one does not fit."""

    steps: tuple[int, ...] = (1, 2, 3, 4, 5, 10)  # other numbers of steps
    momentum: tuple[float, ...] = (0.0, 0.9)  # other momenta
    most_of_all_layers: int = 2  # clients that are tried where all layers were trained
    least_decay: float = 1e-7  # a weight decay below this is none
    same_factor: float = 0.01  # a factor this close to one is none
    largest_decay: float = 1.0  # nobody decays weights by more


OTHER_CLIENTS = OtherClients()
WOULD_FIT = "what would fit: "  # how a sentence about another client begins
Again = Callable[[SgdSteps], Recovery]
Plain = Callable[[Sequence[GradientShare]], Sequence[Recovery]]


def would_fit(
    subject: Subject, share: GradientShare, said: SgdSteps, again: Again, plain: Plain
) -> str:
    """Return in words which other client explains the update, or that none was found.

    Args:
        subject: the model.
        share: the update.
        said: the steps that were assumed.
        again: recovers the label by other steps.
        plain: recovers the labels behind gradients, as of one step.
    """
    G = share[subject.head.weight_name]
    if is_sign_pattern(G):
        return "its entries all have one size: a step of Adam or of signs would fit"
    decays = [0.0, *([found] if (found := decay_of(subject, share, said)) else [])]
    single = _is_product(subject, share, said, decays)
    scaled = _factor_of(subject, share, said, plain) if single else None
    if scaled is not None and scaled[0]:
        return scaled[1]
    # Where all layers were trained, each client is a search of its own: the nearest few are tried.
    most = None if trains_head_alone(subject, share) else OTHER_CLIENTS.most_of_all_layers
    for recipe in islice(_others(said, decays), most):
        if _explains(again(recipe)):
            words = f"{WOULD_FIT}{_difference(said, recipe)}"
            return words if scaled is None else f"{words}; or {scaled[1].removeprefix(WOULD_FIT)}"
    if not single:
        return "what would fit: several samples, or other steps of all layers"
    return scaled[1] if scaled else "no other client that was tried explains it either"


def decay_of(subject: Subject, share: GradientShare, recipe: SgdSteps) -> float | None:
    """Return the weight decay that the columns of the head's update show, if they show one.

    The columns of ``Σ w δ xᵀ`` sum to zero, so those of the update sum to ``1 − α`` times those of
    the weights, and ``α`` falls as the decay grows.
    """
    W = subject.head.W.double()
    sums, weights = share[subject.head.weight_name].to(W.device).double().sum(0), W.sum(0)
    size = float(weights.norm())
    if size == 0:
        return None
    lost = float(sums @ weights) / size**2
    left = float((sums - lost * weights).norm())
    noise = share.noise(subject.head.weight_name) * W.numel() ** 0.5
    if left > RANK.fewest_roundings * noise or abs(lost) * size <= RANK.fewest_roundings * noise:
        return None
    low, high = 0.0, OTHER_CLIENTS.largest_decay
    for _ in range(60):
        middle = (low + high) / 2
        if 1 - replace(recipe, weight_decay=middle).kept[-1] < lost:
            low = middle
        else:
            high = middle
    return low if OTHER_CLIENTS.least_decay < low < 0.999 * OTHER_CLIENTS.largest_decay else None


def _others(said: SgdSteps, decays: list[float]) -> Iterator[SgdSteps]:
    """Yield clients that differ from the one assumed, those that differ least first."""
    for decay in reversed(decays):
        if decay and abs(decay / (said.weight_decay or torch.inf) - 1) > 1e-2:
            yield replace(said, weight_decay=decay)
    counts = sorted(OTHER_CLIENTS.steps, key=lambda count: abs(count - said.steps))
    yield from (replace(said, steps=count) for count in counts if count != said.steps)
    for momentum in OTHER_CLIENTS.momentum:
        if momentum != said.momentum:
            changed = replace(said, momentum=momentum, nesterov=False)
            yield changed
            yield from (replace(changed, steps=n) for n in counts if n != said.steps and momentum)


def _explains(answer: Recovery) -> bool:
    simple = answer.family is not None and not isinstance(answer.family, AnyLabel)
    return simple and bool(answer.solutions) and answer.status is not Status.NOT_SINGLE


def _difference(said: SgdSteps, found: SgdSteps) -> str:
    names = ("steps", "momentum", "weight_decay")
    changed = [(n, getattr(said, n), getattr(found, n)) for n in names]
    return ", ".join(f"{n}={new:.3g} instead of {old:g}" for n, old, new in changed if old != new)


def _is_product(
    subject: Subject, share: GradientShare, said: SgdSteps, decays: list[float]
) -> bool:
    tries = [replace(said, weight_decay=decay) for decay in (said.weight_decay, *decays)]
    return any(
        bool(factor(subject.head, [mean_gradient(subject, share, one)]).rank_one) for one in tries
    )


def _factor_of(
    subject: Subject, share: GradientShare, said: SgdSteps, plain: Plain
) -> tuple[bool, str] | None:
    """Return whether another factor of one step is proved, and in words that it explains it."""
    one = mean_gradient(subject, share, replace(said, steps=1, momentum=0.0, nesterov=False))
    answer = plain([replace(one, scale="unknown")])[0]
    if not _explains(answer) or abs(answer.scale - 1) < OTHER_CLIENTS.same_factor:
        return None
    words = (
        f"{WOULD_FIT}one step times {answer.scale:.3g}, as after clipping or with another "
        "learning rate"
    )
    return answer.status is Status.UNIQUE, words
