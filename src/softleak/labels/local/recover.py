"""Answer for updates of local training: which way leads back, what is doubted, and, where the
client that was stated does not explain an update, which other one would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

import torch
from torch import Tensor

from softleak.core.client import SgdSteps, mean_gradient, mean_of_head
from softleak.core.factors import FEWEST_ROUNDINGS, Factors, factor, numerical_rank
from softleak.core.families import AnyLabel, Binary, Family, SmoothedBinary, SmoothedMixed
from softleak.core.fit import Bearing, Explanation, Hypothesis, Topic
from softleak.core.knowledge import Knowledge
from softleak.core.loss import BinaryCrossEntropy, Loss
from softleak.core.results import Candidate, Recovery, Status, Why, because
from softleak.core.share import UNKNOWN, GradientShare, LocalTraining, alike
from softleak.core.subject import Subject
from softleak.labels.certify import Doubt, with_note
from softleak.labels.composition import never_negative
from softleak.labels.curve import PseudoLabels, Segment, on_simplex, other_factors_fit
from softleak.labels.evidence.relation import Estimate, HeadBias, combine
from softleak.labels.fit import loss_beside_softmax
from softleak.labels.local.head_alone import (
    by_rounding,
    recover_head_alone,
    trains_bias,
    trains_head_alone,
)
from softleak.labels.local.whole import recover_by_head, recover_whole, rows_seen
from softleak.labels.otherwise import is_sign_pattern
from softleak.labels.residual import (
    FEWEST,
    FITS,
    NOWHERE,
    TOLERANCE,
    UNSURE,
    EntryCurve,
    label_at,
    recover_binary,
)
from softleak.labels.search import SEARCH_FIT
from softleak.labels.solve import WIDEST, doubted

Plain = Callable[[Sequence[GradientShare]], Sequence[Recovery]]  # recovers gradients


BEST_FIT_SAME_SCALE = 1e-6  # relative: the share counts as the gradient itself
BEST_FIT_LEAST_ROUNDING = 1e-12  # L1: labels are not known better


def is_open(answer: Recovery) -> bool:
    """Return whether several labels fit, and neither a factor nor another layer decides."""
    if answer.status is not Status.AMBIGUOUS or not answer.solutions:
        return False
    decided = any(evidence.holds for evidence in answer.evidence)
    return abs(answer.scale - 1) <= BEST_FIT_SAME_SCALE and not decided


def best_fitting(answer: Recovery, family: Family) -> Recovery:
    """Return the answer with the label that fits best, its feature, and the error it may have."""
    if not is_open(answer) or answer.feature is None or answer.scalar is None:
        return answer

    def unlikely(one: Candidate) -> float:
        """Return how unlikely a candidate makes the update, if its errors are of rounding."""
        return one.misfit**2 / 2 + math.log(max(one.rounding, BEST_FIT_LEAST_ROUNDING))

    best = min(answer.solutions, key=unlikely)
    label = on_simplex(family.project(best.label))
    every = torch.cat([one.labels for one in answer.solutions])
    rounding = max(one.rounding for one in answer.solutions)
    ends = [abs(best.high - best.scalar), abs(best.scalar - best.low)]
    return replace(
        answer, label=label, scalar=best.scalar,
        feature=answer.feature * (answer.scalar / best.scalar),
        error=float((every - label).abs().sum(-1).max()) + rounding,
        feature_error=max(answer.feature_error, max(ends) / abs(best.scalar)),
    )  # fmt: skip


# These values are tried where a client's setting is unknown.
GUESSED_STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 16, 20)
GUESSED_MOMENTUM = (0.0, 0.5, 0.9, 0.95, 0.99)
# With these answers no other client is looked for.
NO_CAUSE_SOUGHT = (Status.UNIQUE, Status.ZERO_GRADIENT, Status.REFUSED)


def recover_trained(
    subject: Subject, knowledge: Knowledge, shares: Sequence[GradientShare], plain: Plain,
    others: bool = True,
) -> list[Recovery]:  # fmt: skip
    """Recover the labels behind updates ``before − after`` of local training on one sample each."""
    found: dict[int, Recovery] = {}
    several = knowledge.samples is not None and knowledge.samples > 1  # which is reason enough
    keys = [(x.made_by, x.scale, x.precision, trains_head_alone(subject, x), *x) for x in shares]
    for places in alike(keys):  # one client, the same layers
        some = [shares[i] for i in places]
        known = knowledge.of(some[0])
        answers, recipe = _answers(subject, known, some, plain)
        found.update(zip(places, answers, strict=True))
        other = loss_beside_softmax(known, subject.head) is not None
        if recipe is None or several or other or not others:
            continue
        open_ = [i for i in places if found[i].status not in NO_CAUSE_SOUGHT]
        if not trains_head_alone(subject, some[0]):
            # Where all layers were trained, a label that explains the update is reason enough.
            open_ = [i for i in open_ if found[i].label is None]
        rest = [shares[i] for i in open_]
        named = would_fit(subject, known, rest, recipe, plain) if rest else []
        found |= {
            i: _refuted(with_note(found[i], words)) for i, words in zip(open_, named, strict=True)
        }
    return [found[i] for i in range(len(shares))]


def _refuted(answer: Recovery) -> Recovery:
    """Return an answer that says, if no label is one, that the client was not as it was stated."""
    if answer.status is not Status.NO_SOLUTION or answer.label is not None:
        return answer
    other = Hypothesis(Topic.STEPS, Bearing.CONTRADICTED, Explanation.OTHER_CLIENT)
    return replace(answer, fit=answer.fit.saying(other))


# Where the head alone was trained under a loss whose outputs do not meet, any residual ``δ`` moves
# the logits entry by entry, ``z ← z − η (‖x‖² + β) δ``. The update of a trained bias tells the
# scalar; binary labels are found without it.
KINDS: tuple[Family, ...] = (Binary(), SmoothedBinary())


def recover_steps_under(
    subject: Subject, knowledge: Knowledge, share: GradientShare, recipe: SgdSteps, loss: Loss
) -> Recovery:
    """Return the label behind several steps on one sample under a loss that was stated."""
    if loss.balanced:
        return Recovery(Status.NO_SOLUTION, because(Why.STEPS_OF_LOSS, loss=loss), loss=loss)
    if not trains_head_alone(subject, share):
        found = recover_whole(subject, knowledge, share, recipe, loss)
        nothing = Recovery(Status.NO_SOLUTION, because(Why.STEPS_OF_LAYERS, loss=loss), loss=loss)
        return found or nothing
    mean = mean_of_head(subject, share, recipe)
    factors = factor(subject.head, [mean])
    if not bool(factors.rank_one & ~factors.zero):
        rank = numerical_rank(subject.head, mean, factors.relative)
        why = because(Why.SEVERAL_RANK, rank=rank)
        return Recovery(Status.NOT_SINGLE, why, samples=rank, loss=loss)
    bias = trains_bias(subject, share)
    curve = EntryCurve.of(subject.head, factors, loss, recipe, bias)
    family = knowledge.family if knowledge.family in KINDS else None
    nothing = Recovery(Status.NO_SOLUTION, because(Why.NO_LABEL_OF_LOSS, loss=loss), loss=loss)
    if bias and not knowledge.head_only:
        verdict = combine([HeadBias(subject.head.bias_name)], [mean], subject.head, factors)
        if bool(verdict.decided):
            return _at(curve, factors, verdict, family, nothing)
    if not isinstance(loss, BinaryCrossEntropy) or subject.head.classes == 1:
        why = because(Why.ANY_SCALAR_FITS, loss=loss)
        return replace(nothing, status=Status.AMBIGUOUS, reason=why)
    return recover_binary(curve, factors, family, subject.once(never_negative))


def _at(
    curve: EntryCurve, factors: Factors, verdict: Estimate, family: Family | None, nothing: Recovery
) -> Recovery:
    """Return the label at the scalar that the update of the head's bias tells."""
    t, loss = float(verdict.scalar), curve.loss
    label, errors = label_at(curve, t, float(verdict.error))
    outside = torch.maximum(loss.least - label, label - loss.most)
    if not bool((outside <= FITS * errors).all()) or float(label.abs().max()) >= NOWHERE:
        return nothing
    error, kind = float(errors.sum()), None
    if isinstance(loss, BinaryCrossEntropy) and float(errors.max()) < UNSURE:
        kinds: tuple[Family, ...] = KINDS if family is None else (family,)
        kind = next((one for one in kinds if _borne_out(one, label, errors)), None)
    sure = kind is not None and error <= TOLERANCE
    return replace(
        nothing, status=Status.UNIQUE if sure else Status.AMBIGUOUS, scalar=t, error=error,
        label=label if kind is None else kind.project(label), complete=sure, family=kind,
        feature=factors.sigma[0] / t * factors.v[0], evidence=verdict.pieces[0],
        feature_error=float(verdict.error) / abs(t) + factors.feature_error(0),
        reason=because(Why.UNDER_STATED_LOSS if sure else Why.LOSS_NOT_TESTED, loss=loss),
    )  # fmt: skip


def _borne_out(kind: Family, label: Tensor, errors: Tensor) -> bool:
    """Return whether a label is of a kind to within its errors, with equations to spare."""
    spare = len(label) - int(isinstance(kind, SmoothedBinary))
    return spare >= FEWEST and bool(((kind.project(label) - label).abs() <= FITS * errors).all())


def attempt(
    subject: Subject, knowledge: Knowledge, shares: Sequence[GradientShare], recipe: SgdSteps,
    plain: Plain,
) -> list[Recovery]:  # fmt: skip
    """Return the answers of the way that a recipe calls for; all shares trained the same layers."""
    found: Sequence[Recovery | None]
    loss = loss_beside_softmax(knowledge, subject.head)
    if recipe.steps > 1 and loss is not None:
        return [recover_steps_under(subject, knowledge, one, recipe, loss) for one in shares]
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
    not_read = Recovery(
        Status.NOT_SINGLE,
        f"the update is not read as {recipe.steps} steps on one sample: either the client did not "
        "take them as it is said to, or this network does not show its input behind several steps "
        "of all layers; no label is claimed",
    )
    family = knowledge.family or WIDEST
    answers = [best_fitting(one or not_read, family) for one in found]
    if loss is not None or not trains_head_alone(subject, shares[0]):
        return answers
    return [
        by_rounding(subject, share, recipe, one, family) if is_open(one) else one
        for share, one in zip(shares, answers, strict=True)
    ]


def _answers(
    subject: Subject, knowledge: Knowledge, shares: Sequence[GradientShare], plain: Plain
) -> tuple[Sequence[Recovery], SgdSteps | None]:
    """Return the answers for shares of one client's settings that trained the same layers."""
    training = shares[0].made_by
    if training is None:
        return plain(shares), None
    if training.optimiser != "sgd":
        return [_of_adam(share, plain) for share in shares], None
    if training.lr is UNKNOWN and training.single_steps != 1:
        words = "not attempted: several steps at an unknown learning rate; say lr, or try several"
        return [Recovery(Status.AMBIGUOUS, words) for _ in shares], None
    if training.lr is UNKNOWN:
        return plain([replace(share, made_by=None, scale="unknown") for share in shares]), None
    recipes = list(_recipes(training))
    tries = [attempt(subject, knowledge, shares, recipe, plain) for recipe in recipes]
    every = zip(*tries, strict=True)
    answers = [_agreed(list(zip(recipes, each, strict=True))) for each in every]
    if knowledge.scale != "known" and loss_beside_softmax(knowledge, subject.head) is None:
        pairs = zip(shares, answers, strict=True)
        answers = [_tested(subject, share, one, recipes[0]) for share, one in pairs]
    return answers, recipes[0]


def _recipes(training: LocalTraining) -> Iterator[SgdSteps]:
    """Yield the recipe of a client, or those that its unknown settings leave."""
    steps = GUESSED_STEPS if training.steps is UNKNOWN else (training.single_steps,)
    momenta = GUESSED_MOMENTUM if training.momentum is UNKNOWN else (training.momentum,)
    # An unknown decay is seen in the head's own column sums; see ``decay_of``.
    decay = 0.0 if training.weight_decay is UNKNOWN else training.weight_decay
    for count, momentum in product(steps, momenta):
        said = replace(training, epochs=None, steps=count or 1, momentum=momentum)
        recipe = SgdSteps.of(replace(said, weight_decay=decay))
        if recipe is not None:
            yield recipe


def _agreed(tries: list[tuple[SgdSteps, Recovery]]) -> Recovery:
    """Return the answer of the only recipe that fits, if several had to be tried."""
    if len(tries) == 1:
        return tries[0][1]
    explained = [(r, a) for r, a in tries if a.label is not None and _simple(a)]
    proved = [(r, a) for r, a in explained if a.status is Status.UNIQUE]
    fitting = proved or [(r, a) for r, a in explained if a.status is Status.AMBIGUOUS]
    distinct = {tuple(a.label.tolist()) for _, a in fitting if a.label is not None}
    if len(distinct) != 1:
        return Recovery(
            Status.AMBIGUOUS if fitting else Status.NO_SOLUTION,
            f"{len(fitting)} of the {len(tries)} clients that were tried for the unknown settings "
            "explain the update; no label is claimed",
        )
    recipe, answer = fitting[0]
    settings = ((name, getattr(recipe, name)) for name in ("lr", *SETTINGS))
    said = ",".join(f"{name}={value:g}" for name, value in settings if value)
    return with_note(answer, f"of the {len(tries)} clients that were tried only {said} fits")


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
    tau = factors.sigma.new_tensor([(answer.scalar or 1.0) * answer.scale])
    segment = Segment.at(PseudoLabels.of(subject.head, factors), tau, 0 * tau)
    if other_factors_fit(segment, SmoothedMixed(2), tau.abs(), SEARCH_FIT):
        return doubted(answer, Doubt.CLIENT_OPEN.value)
    return answer


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


# These clients are tried where the assumed one does not fit.
OTHER_CLIENTS_STEPS = (1, 2, 3, 4, 5, 10)  # other numbers of steps
OTHER_CLIENTS_MOMENTUM = (0.0, 0.9)  # other momenta
OTHER_CLIENTS_MOST_OF_ALL_LAYERS = 2  # clients that are tried where all layers were trained
OTHER_CLIENTS_LEAST_DECAY = 1e-7  # a weight decay below this is none
OTHER_CLIENTS_SAME_FACTOR = 0.01  # a factor this close to one is none
OTHER_CLIENTS_LARGEST_DECAY = 1.0  # weights are not decayed by more
SETTINGS = ("steps", "momentum", "weight_decay")


@dataclass(frozen=True, eq=False)
class Unexplained:
    """An update that the assumed client does not explain."""

    share: GradientShare  # the update
    decay: float | None  # the weight decay that its columns show, if they show one
    single: bool  # whether it is a product as that of one sample is, with that decay or without
    least_steps: int  # fewer, without decay, leave no such update of one sample


def would_fit(
    subject: Subject, knowledge: Knowledge, shares: Sequence[GradientShare], said: SgdSteps,
    plain: Plain,
) -> list[str]:  # fmt: skip
    """Return in words which client but the one ``said`` explains each update, or that none does."""
    signs = [is_sign_pattern(one[subject.head.weight_name]) for one in shares]
    left = _seen(subject, {i: one for i, one in enumerate(shares) if not signs[i]}, said)
    factors = _factors_of(subject, {i: x.share for i, x in left.items() if x.single}, said, plain)
    proved = {i for i, answer in factors.items() if answer.status is Status.UNIQUE}
    open_ = {i: one for i, one in left.items() if i not in proved}
    steps = _other_steps(subject, knowledge, open_, said, plain)
    words = []
    for i in range(len(shares)):
        fitting = []
        if signs[i]:
            words.append("its entries all have one size: a step of Adam or of signs would fit")
            continue
        if i in steps:
            pairs = ((name, getattr(said, name), getattr(steps[i], name)) for name in SETTINGS)
            other = [f"{n}={new:.3g} instead of {old:g}" for n, old, new in pairs if old != new]
            fitting = [", ".join(other)]
        if not fitting and not left[i].single:
            fitting = ["several samples, or other steps of all layers"]
        elif i in factors:
            times = f"one step times {factors[i].scale:.3g}"
            fitting.append(f"{times}, as after clipping or with another learning rate")
        none = "no other client that was tried explains it either"
        words.append(f"what would fit: {'; or '.join(fitting)}" if fitting else none)
    return words


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
    return {
        i: Unexplained(
            one, decays[i], i in single,
            1 if trains_head_alone(subject, one) else rows_seen(subject, one),
        )
        for i, one in shares.items()
    }  # fmt: skip


def _other_steps(
    subject: Subject, knowledge: Knowledge, left: Mapping[int, Unexplained], said: SgdSteps,
    plain: Plain,
) -> dict[int, SgdSteps]:  # fmt: skip
    """Return the steps that explain each update, of those that differ least from what was said."""
    found, tried = dict[int, SgdSteps](), 0
    for i, one in left.items():
        if one.decay and abs(one.decay / (said.weight_decay or torch.inf) - 1) > 1e-2:
            decayed, tried = replace(said, weight_decay=one.decay), 1
            if _explains(attempt(subject, knowledge, [one.share], decayed, plain)[0]):
                found[i] = decayed
    # Where all layers were trained, each client is a search of its own: the nearest few are tried.
    alone = all(trains_head_alone(subject, one.share) for one in left.values())
    most = None if alone else OTHER_CLIENTS_MOST_OF_ALL_LAYERS - tried
    for recipe in islice(_others(said), most):
        if len(found) == len(left):
            break
        # The rank of an update may rule out the steps on one sample.
        least = torch.inf if recipe.weight_decay else recipe.steps
        open_ = [i for i, x in left.items() if i not in found and x.least_steps <= least]
        some = [left[i].share for i in open_]
        answers = attempt(subject, knowledge, some, recipe, plain) if some else []
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
    if left > FEWEST_ROUNDINGS * noise or abs(lost) * size <= FEWEST_ROUNDINGS * noise:
        return None
    low, high = 0.0, OTHER_CLIENTS_LARGEST_DECAY
    for _ in range(60):
        middle = (low + high) / 2
        loses_less = 1 - replace(recipe, weight_decay=middle).kept[-1] < lost
        low, high = (middle, high) if loses_less else (low, middle)
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
    return _simple(answer) and bool(answer.solutions) and answer.status is not Status.NOT_SINGLE


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
