"""Name the client that would explain an update which the assumed one does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch

from softleak.core.factors import RANK, factor
from softleak.core.families import AnyLabel
from softleak.core.results import Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.core.update import SgdSteps, mean_gradient, mean_of_head
from softleak.labels.composition import is_sign_pattern
from softleak.labels.local.head_alone import trains_head_alone
from softleak.labels.local.whole_head import rows_seen

# These clients are tried where the assumed one does not fit.
OTHER_CLIENTS_STEPS = (1, 2, 3, 4, 5, 10)  # other numbers of steps
OTHER_CLIENTS_MOMENTUM = (0.0, 0.9)  # other momenta
OTHER_CLIENTS_MOST_OF_ALL_LAYERS = 2  # clients that are tried where all layers were trained
OTHER_CLIENTS_LEAST_DECAY = 1e-7  # a weight decay below this is none
OTHER_CLIENTS_SAME_FACTOR = 0.01  # a factor this close to one is none
OTHER_CLIENTS_LARGEST_DECAY = 1.0  # weights are not decayed by more


Again = Callable[[Sequence[GradientShare], SgdSteps], Sequence[Recovery]]
Plain = Callable[[Sequence[GradientShare]], Sequence[Recovery]]


@dataclass(frozen=True, eq=False)
class Unexplained:
    """An update that the assumed client does not explain."""

    share: GradientShare  # the update
    decay: float | None  # the weight decay that its columns show, if they show one
    single: bool  # whether it is a product as that of one sample is, with that decay or without
    # A single sample on which all layers are trained leaves no such update in fewer steps without
    # weight decay; 1 if the head alone was trained.
    least_steps: int

    def excludes(self, recipe: SgdSteps) -> bool:
        """Return whether the rank of the update alone rules out the steps on one sample."""
        return not recipe.weight_decay and recipe.steps < self.least_steps


def would_fit(
    subject: Subject, shares: Sequence[GradientShare], said: SgdSteps, again: Again, plain: Plain
) -> list[str]:
    """Return in words which other client explains each update, or that none was found.

    The steps that were assumed are ``said``; ``again`` recovers the labels by other steps.
    """
    signs = "its entries all have one size: a step of Adam or of signs would fit"
    words: dict[int, str] = {
        i: signs for i, one in enumerate(shares) if is_sign_pattern(one[subject.head.weight_name])
    }
    left = _seen(subject, {i: one for i, one in enumerate(shares) if i not in words}, said)
    factors = _factors_of(subject, {i: one.share for i, one in left.items() if one.single},
                          said, plain)  # fmt: skip
    proved = {i for i, answer in factors.items() if answer.status is Status.UNIQUE}
    steps = _other_steps(subject, {i: one for i, one in left.items() if i not in proved},
                         said, again)  # fmt: skip
    for i, one in left.items():
        fitting = [_difference(said, steps[i])] if i in steps else []
        if not fitting and not one.single:
            fitting = ["several samples, or other steps of all layers"]
        elif i in factors:
            fitting.append(_one_step_times(factors[i].scale))
        words[i] = _would_fit(*fitting)
    return [words[i] for i in range(len(shares))]


def _seen(
    subject: Subject, shares: Mapping[int, GradientShare], said: SgdSteps
) -> dict[int, Unexplained]:
    """Return what updates show before any client is tried; all are factored at once."""
    decays = {i: decay_of(subject, one, said) for i, one in shares.items()}
    tried = [
        (i, replace(said, weight_decay=some))
        for i, own in decays.items()
        for some in {said.weight_decay, 0.0, own or 0.0}
    ]
    means = [mean_of_head(subject, shares[i], one) for i, one in tried]
    products = factor(subject.head, means).rank_one.tolist() if means else []
    single = {i for (i, _), product in zip(tried, products, strict=True) if product}
    found = {}
    for i, one in shares.items():
        least = 1 if trains_head_alone(subject, one) else rows_seen(subject, one)
        found[i] = Unexplained(one, decays[i], i in single, least)
    return found


def _other_steps(
    subject: Subject, left: Mapping[int, Unexplained], said: SgdSteps, again: Again
) -> dict[int, SgdSteps]:
    """Return the steps that explain each update, of those that differ least from what was said."""
    found: dict[int, SgdSteps] = {}
    tried = 0
    for i, one in left.items():
        if one.decay and abs(one.decay / (said.weight_decay or torch.inf) - 1) > 1e-2:
            decayed, tried = replace(said, weight_decay=one.decay), 1
            if _explains(again([one.share], decayed)[0]):
                found[i] = decayed
    # Where all layers were trained, each client is a search of its own: the nearest few are tried.
    alone = all(trains_head_alone(subject, one.share) for one in left.values())
    most = None if alone else OTHER_CLIENTS_MOST_OF_ALL_LAYERS - tried
    for recipe in islice(_others(said), most):
        if len(found) == len(left):
            break
        open_ = [i for i, one in left.items() if i not in found and not one.excludes(recipe)]
        if not open_:
            continue
        answers = again([left[i].share for i in open_], recipe)
        found |= {i: recipe for i, a in zip(open_, answers, strict=True) if _explains(a)}
    return found


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
    low, high = 0.0, OTHER_CLIENTS_LARGEST_DECAY
    for _ in range(60):
        middle = (low + high) / 2
        if 1 - replace(recipe, weight_decay=middle).kept[-1] < lost:
            low = middle
        else:
            high = middle
    return low if OTHER_CLIENTS_LEAST_DECAY < low < 0.999 * OTHER_CLIENTS_LARGEST_DECAY else None


def _others(said: SgdSteps) -> Iterator[SgdSteps]:
    """Yield clients that differ from the one assumed, those that differ least first."""
    counts = sorted(OTHER_CLIENTS_STEPS, key=lambda count: abs(count - said.steps))
    yield from (replace(said, steps=count) for count in counts if count != said.steps)
    for momentum in OTHER_CLIENTS_MOMENTUM:
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


def _would_fit(*fitting: str) -> str:
    if not fitting:
        return "no other client that was tried explains it either"
    return f"what would fit: {'; or '.join(fitting)}"


def _one_step_times(scale: float) -> str:
    return f"one step times {scale:.3g}, as after clipping or with another learning rate"


def _factors_of(
    subject: Subject, shares: Mapping[int, GradientShare], said: SgdSteps, plain: Plain
) -> dict[int, Recovery]:
    """Return the answers where another factor of one step explains an update."""
    once = replace(said, steps=1, momentum=0.0, nesterov=False)
    means = [replace(mean_gradient(subject, one, once), scale="unknown") for one in shares.values()]
    return {
        i: answer
        for i, answer in zip(shares, plain(means), strict=True)
        if _explains(answer) and abs(answer.scale - 1) >= OTHER_CLIENTS_SAME_FACTOR
    }
