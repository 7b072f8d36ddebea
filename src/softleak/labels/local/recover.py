"""Answer for updates of local training: which way leads back, and what is doubted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch

from softleak.core.factors import factor
from softleak.core.families import AnyLabel, Family, SmoothedMixed
from softleak.core.knowledge import Knowledge
from softleak.core.results import Candidate, Recovery, Status
from softleak.core.share import UNKNOWN, GradientShare, LocalTraining
from softleak.core.subject import Subject
from softleak.core.update import SgdSteps, mean_gradient, mean_of_head
from softleak.labels.curve import on_simplex
from softleak.labels.local.fitting_clients import Plain, would_fit
from softleak.labels.local.head_alone import by_rounding, recover_head_alone, trains_head_alone
from softleak.labels.local.whole_head import recover_by_head
from softleak.labels.local.whole_network import recover_whole
from softleak.labels.messages import Doubt, with_note
from softleak.labels.pseudo import PseudoLabels
from softleak.labels.review import doubted
from softleak.labels.scale import Segment, other_factors_fit
from softleak.labels.search import SEARCH_FIT
from softleak.labels.solve import WIDEST

# What says of which answers the label moves.
BEST_FIT_SAME_SCALE = 1e-6  # relative: the share counts as the gradient itself
BEST_FIT_LEAST_ROUNDING = 1e-12  # L1: labels are not known better


def is_open(answer: Recovery) -> bool:
    """Return whether several labels fit, and neither a factor nor another layer decides."""
    if answer.status is not Status.AMBIGUOUS or not answer.solutions:
        return False
    decided = any(evidence.holds for evidence in answer.evidence)
    return abs(answer.scale - 1) <= BEST_FIT_SAME_SCALE and not decided


def _unlikely(one: Candidate) -> float:
    """Return how unlikely a candidate makes the update, if its errors are those of rounding."""
    return one.misfit**2 / 2 + math.log(max(one.rounding, BEST_FIT_LEAST_ROUNDING))


def best_fitting(answer: Recovery, family: Family) -> Recovery:
    """Return the answer with the label that fits best, its feature, and the error it may have.

    Only an AMBIGUOUS answer changes. Its message and everything else that fits stay.

    Args:
        answer: what was recovered.
        family: the family that was searched.
    """
    if not is_open(answer) or answer.feature is None or answer.scalar is None:
        return answer
    best = min(answer.solutions, key=_unlikely)
    label = on_simplex(family.project(best.label))
    every = torch.cat([one.labels for one in answer.solutions])
    rounding = max(one.rounding for one in answer.solutions)
    ends = [abs(best.high - best.scalar), abs(best.scalar - best.low)]
    return replace(
        answer,
        label=label,
        feature=answer.feature * (answer.scalar / best.scalar),
        scalar=best.scalar,
        error=float((every - label).abs().sum(-1).max()) + rounding,
        feature_error=max(answer.feature_error, max(ends) / abs(best.scalar)),
    )


# These values are tried where a client's setting is unknown.
GUESSED_STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 16, 20)
GUESSED_MOMENTUM = (0.0, 0.5, 0.9, 0.95, 0.99)


NO_CAUSE_SOUGHT = (
    Status.UNIQUE,
    Status.ZERO_GRADIENT,
    Status.REFUSED,
)  # no other client is looked for


@dataclass(frozen=True, eq=False)
class TrainedAnswer:
    """What was recovered, and the steps it rests on."""

    recovery: Recovery
    recipe: SgdSteps | None = None


def recover_trained(
    subject: Subject, knowledge: Knowledge, shares: Sequence[GradientShare], plain: Plain
) -> list[Recovery]:
    """Recover the labels behind updates ``before − after`` of local training on one sample each."""
    answers = answer_trained(subject, knowledge, shares, plain)
    found = [answer.recovery for answer in answers]
    if knowledge.samples is not None and knowledge.samples > 1:
        return found  # several samples are reason enough
    for places in _alike(subject, shares):
        recipe = answers[places[0]].recipe
        open_ = [i for i in places if found[i].status not in NO_CAUSE_SOUGHT]
        if not trains_head_alone(subject, shares[places[0]]):
            # Where all layers were trained, a label that explains the update is reason enough.
            open_ = [i for i in open_ if found[i].label is None]
        if recipe is None or not open_:
            continue
        known = knowledge.of(shares[places[0]])

        def again(
            some: Sequence[GradientShare], other: SgdSteps, known: Knowledge = known
        ) -> list[Recovery]:
            return attempt(subject, known, some, other, plain)

        named = would_fit(subject, [shares[i] for i in open_], recipe, again, plain)
        for i, words in zip(open_, named, strict=True):
            found[i] = with_note(found[i], words)
    return found


def answer_trained(
    subject: Subject, knowledge: Knowledge, shares: Sequence[GradientShare], plain: Plain
) -> list[TrainedAnswer]:
    """Return the answers, and the steps each rests on; None if there are none to doubt.

    The arguments are those of ``recover_trained``. No other client is looked for.
    """
    found: dict[int, TrainedAnswer] = {}
    for places in _alike(subject, shares):
        alike = [shares[i] for i in places]
        found.update(zip(places, _answers(subject, knowledge, alike, plain), strict=True))
    return [found[i] for i in range(len(shares))]


def _alike(subject: Subject, shares: Sequence[GradientShare]) -> list[list[int]]:
    """Return the indices of shares that are recovered together: one client, the same layers."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, share in enumerate(shares):
        key = (share.made_by, share.scale, share.precision, trains_head_alone(subject, share))
        groups[key, tuple(share)].append(index)
    return list(groups.values())


def attempt(
    subject: Subject, knowledge: Knowledge, shares: Sequence[GradientShare], recipe: SgdSteps,
    plain: Plain,
) -> list[Recovery]:  # fmt: skip
    """Return the answers of the way that a recipe calls for; all shares trained the same layers."""
    found: Sequence[Recovery | None]
    if recipe.steps == 1:
        found = plain([mean_gradient(subject, share, recipe) for share in shares])
    elif trains_head_alone(subject, shares[0]):
        found = recover_head_alone(subject, knowledge, shares, recipe)
    else:
        found = [
            recover_whole(subject, knowledge, share, recipe)
            or recover_by_head(subject, knowledge, share, recipe)
            for share in shares
        ]
    family = knowledge.family or WIDEST
    answers = [best_fitting(one or _not_read(recipe), family) for one in found]
    if not trains_head_alone(subject, shares[0]):
        return answers
    return [
        by_rounding(subject, share, recipe, one, family) if is_open(one) else one
        for share, one in zip(shares, answers, strict=True)
    ]


def _not_read(recipe: SgdSteps) -> Recovery:
    return Recovery(
        Status.NOT_SINGLE,
        f"the update is not read as {recipe.steps} steps on one sample: either the client did not "
        "take them as it is said to, or this network does not show its input behind several steps "
        "of all layers; no label is claimed",
    )


def _answers(
    subject: Subject, knowledge: Knowledge, shares: Sequence[GradientShare], plain: Plain
) -> list[TrainedAnswer]:
    """Return the answers for shares of one client's settings that trained the same layers."""
    training, knowledge = shares[0].made_by, knowledge.of(shares[0])
    if training is None:
        return [TrainedAnswer(one) for one in plain(shares)]
    refused = _not_attempted(training)
    if refused is not None and training.optimiser == "sgd":
        return [TrainedAnswer(refused) for _ in shares]
    if refused is not None:
        return [TrainedAnswer(_of_adam(share, plain)) for share in shares]
    if training.lr is UNKNOWN:
        scaled = [replace(share, made_by=None, scale="unknown") for share in shares]
        return [TrainedAnswer(one) for one in plain(scaled)]
    recipes = list(_recipes(training))
    tries = [attempt(subject, knowledge, shares, recipe, plain) for recipe in recipes]
    found = []
    for share, *every in zip(shares, *tries, strict=True):
        answer = _agreed(list(zip(recipes, every, strict=True)))
        if knowledge.scale != "known":
            answer = _tested(subject, share, answer, recipes[0])
        found.append(TrainedAnswer(answer, recipes[0]))
    return found


def _recipes(training: LocalTraining) -> Iterator[SgdSteps]:
    """Yield the recipe of a client, or those that its unknown settings leave."""
    steps = GUESSED_STEPS if training.steps is UNKNOWN else (training.single_steps,)
    momenta = GUESSED_MOMENTUM if training.momentum is UNKNOWN else (training.momentum,)
    # An unknown decay is seen in the head's own column sums; see ``decay.py``.
    decay = 0.0 if training.weight_decay is UNKNOWN else training.weight_decay
    for count, momentum in product(steps, momenta):
        said = replace(
            training, epochs=None, steps=count or 1, momentum=momentum, weight_decay=decay
        )
        recipe = SgdSteps.of(said)
        if recipe is not None:
            yield recipe


def _agreed(tries: list[tuple[SgdSteps, Recovery]]) -> Recovery:
    """Return the answer of the only recipe that fits, if several had to be tried."""
    if len(tries) == 1:
        return tries[0][1]
    fitting = [(r, a) for r, a in tries if a.status is Status.UNIQUE and _simple(a)]
    distinct = {tuple(a.label.tolist()) for _, a in fitting if a.label is not None}
    if len(distinct) != 1:
        return Recovery(
            Status.AMBIGUOUS if fitting else Status.NO_SOLUTION,
            f"{len(fitting)} of the {len(tries)} clients that were tried for the unknown settings "
            "explain the update; no label is claimed",
        )
    recipe, answer = fitting[0]
    tried = f"of the {len(tries)} clients that were tried only {describe(recipe)} fits"
    return with_note(answer, tried)


def describe(recipe: SgdSteps) -> str:
    """Return a recipe in the words of the command line."""
    fields = {"lr": recipe.lr, "steps": recipe.steps, "momentum": recipe.momentum,
              "weight_decay": recipe.weight_decay}  # fmt: skip
    return ",".join(f"{name}={value:g}" for name, value in fields.items() if value)


def _simple(answer: Recovery) -> bool:
    return answer.family is not None and not isinstance(answer.family, AnyLabel)


def _tested(subject: Subject, share: GradientShare, answer: Recovery, recipe: SgdSteps) -> Recovery:
    """Return the answer, UNIQUE only if the numbers themselves bear out what was said of steps.

    A label of a simple family is borne out by its equations. Any other label would come out just
    so if the client took another step or had another rate.
    """
    if answer.status is not Status.UNIQUE:
        return answer
    if not _simple(answer):
        return doubted(answer, Doubt.CLIENT_UNTESTED.value)
    factors = factor(subject.head, [mean_of_head(subject, share, recipe)])
    tau = torch.tensor([(answer.scalar or 1.0) * answer.scale], dtype=torch.double)
    tau = tau.to(factors.sigma.device)
    segment = Segment.at(PseudoLabels.of(subject.head, factors), tau, 0 * tau)
    if other_factors_fit(segment, SmoothedMixed(2), tau.abs(), SEARCH_FIT):
        return doubted(answer, Doubt.CLIENT_OPEN.value)
    return answer


def _not_attempted(training: LocalTraining) -> Recovery | None:
    if training.optimiser != "sgd" or (training.lr is UNKNOWN and training.single_steps != 1):
        return Recovery(
            Status.AMBIGUOUS,
            "not attempted: several steps at an unknown learning rate; say lr, or try several",
        )
    return None


def _of_adam(share: GradientShare, plain: Plain) -> Recovery:
    """Return what an update of Adam leaves: the signs of one step, and of more no equations."""
    training = share.made_by
    if training is None or training.single_steps != 1:
        return Recovery(
            Status.AMBIGUOUS,
            "not attempted: several steps of Adam divide every entry by its own size, and no "
            "product of label and feature is left to factor",
        )
    answer = plain([replace(share, made_by=None, scale="unknown")])[0]
    kept = (
        "one step of Adam leaves the sign of every gradient entry, and the size only of entries "
        "that are not much larger than eps; no label is claimed"
    )
    status = answer.status if answer.status is not Status.UNIQUE else Status.AMBIGUOUS
    return with_note(replace(answer, status=status, complete=False), kept)
