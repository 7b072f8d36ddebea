"""The input behind a share: computed exactly where the model allows it, else searched for.

The one place where the method is chosen. ``INPUT_ATTACKS`` lists the attacks, the strongest
first; a new one is a function and a row there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from softleak.audit.leaks import Leak
from softleak.audit.options import Options
from softleak.audit.report import (
    LEAK_RECOGNISABLE,
    Ending,
    InputFinding,
    Method,
    Outcome,
    SamplesFinding,
)
from softleak.batches.sparse.attacks import recover_trained_batch
from softleak.core.errors import in_a_line
from softleak.core.factors import factor
from softleak.core.fit import Bearing, Explanation, Topic
from softleak.core.input_spec import InputSpec, Normalisation, normalisation_of
from softleak.core.results import BatchRecovery, Reason, Recovery, Status, Told, Why, because
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.chain import chain_of
from softleak.inversion.invert import walk_back
from softleak.inversion.patches import invert_patches, patch_plan
from softleak.inversion.quotient import divided, without_factor
from softleak.inversion.results import SUFFICIENT_PSNR, Inversion, NoWay, Text
from softleak.inversion.texts.embeddings import TextPlan, text_plan
from softleak.inversion.texts.read import read_bag, read_text
from softleak.labels.fit import taken_for_noise
from softleak.labels.otherwise import without_decay
from softleak.matching.choose import InputSearch, Searched
from softleak.matching.reconstruction import Reconstruction
from softleak.matching.unrolled import UnrolledMatching


def divide_input(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> InputFinding | None:
    """Return the input by one division, whatever the loss; None if no layer allows it."""
    found = divided(subject, share.expecting(recovery.noise or 0.0), recovery)
    if found is None:
        return None
    pixels = normalisation_of(found.input, options.normalisation)
    told = found.psnr(pixels.scale)
    if recovery.fit[Topic.MODE].bearing is Bearing.CONTRADICTED:
        told = -math.inf  # it is what dropout left of an input
    shown = told if found.verified else None
    reason = because(Why.DIVIDED if found.verified else Why.DIVIDED_TO_A_FACTOR, layer=found.layer)
    return InputFinding(
        Method.QUOTIENT, reason, pixels.pixels(found.input), shown, determined=found.verified,
        to_pixels=pixels, up_to_factor=not found.verified and told >= LEAK_RECOGNISABLE,
        factor=found.factor,
    )  # fmt: skip


def invert_embedded(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> InputFinding | None:
    """Compute the input from the gradients of embeddings; None if the model has none for it."""
    sent, share = share, share.expecting(taken_for_noise(subject, share, recovery))
    if isinstance(subject.input_shape, InputSpec):
        if recovery.fit.explanations & {Explanation.SIGNS, Explanation.ADAPTIVE}:
            return text_finding(read_bag(subject, sent, "signs are left, and not sizes"))
        text = read_text(subject, share, recovery)
        told = text_finding(text)
        several = recovery.status in (Status.NOT_SINGLE, Status.OWN_LABEL)
        mixed = several and isinstance(text, Text) and not text.explained
        if mixed or not told.leaked:
            bag = read_bag(subject, sent, "the update mixes several texts, or was changed")
            told = text_finding(bag) if isinstance(bag, Text) or not told.leaked else told
        return told
    plan = subject.once(patch_plan)
    if isinstance(plan, NoWay) or not {plan.weight, plan.positions} <= share.keys():
        return None
    found = invert_patches(plan, share)
    confirmed = without_factor(subject, share, recovery, found.input, found.error)
    if confirmed is not None:
        x, error, value = confirmed
        found = replace(found, input=x, error=error)
        return replace(_computed(Method.EMBEDDING, found, found.message, options), factor=value)
    made = _computed(Method.EMBEDDING, found, found.message, options)
    good = made.leaked  # but for a factor of the positions' gradient beside that of the patches
    reason = because(Why.TO_A_FACTOR, message=found.message) if good else made.reason
    return replace(made, psnr_predicted=None, reason=reason, up_to_factor=good)


def embeddings(subject: Subject) -> tuple[str, ...]:
    """Return the parameters that tell the input by themselves; a client may freeze them."""
    if isinstance(subject.input_shape, InputSpec):
        text = subject.once(text_plan)
        if not isinstance(text, TextPlan):
            return ()
        return (text.words,) if text.positions is None else (text.words, text.positions)
    plan = subject.once(patch_plan)
    return () if isinstance(plan, NoWay) else (plan.weight, plan.positions)


def text_finding(found: Text | NoWay) -> InputFinding:
    """Return a text as a finding, or why there is none."""
    if isinstance(found, NoWay):
        return InputFinding(Method.NONE, found.reason)
    return InputFinding(Method.TEXT, found.message, determined=found.certain, text=found)


def invert_input(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> InputFinding:
    """Compute the input layer by layer, with its predicted error; or say why it cannot be."""
    chain = subject.once(chain_of)
    if isinstance(chain, NoWay):
        return InputFinding(Method.NONE, chain.reason)
    found = walk_back(subject.model, share, recovery, chain=chain)
    if recovery.fit[Topic.STEPS].bearing is Bearing.CONTRADICTED:
        found = replace(found, borne_out=False)
    agreed = Why.UNDETERMINED if found.borne_out else Why.NOT_BORNE_OUT
    said = because(Why.DETERMINED if found.determined else agreed)
    return _computed(Method.INVERSION, found, said, options)


def _computed(method: Method, found: Inversion, reason: Told, options: Options) -> InputFinding:
    """Return an input that was computed as a finding, in pixels."""
    if not found.input.isfinite().all():
        return InputFinding(method, because(Why.NO_FINITE_SOLUTION))
    pixels = normalisation_of(found.input, options.normalisation)
    told = replace(found, pixel=pixels.scale).psnr_predicted if found.borne_out else None
    return InputFinding(
        method, reason, pixels.pixels(found.input), told, found.determined, found.layers, pixels
    )


USUAL_CONTRAST = 0.25  # the standard deviation of a usual photograph's pixels, of range one
LEAST_CONTRAST = 1e-12  # that every image is taken to have at least
MOST_AGREEMENT = 120.0  # dB; more than that is equality


def agreement_of(one: Tensor, other: Tensor) -> float:
    """Return the PSNR in dB between two images, were their contrast a usual one.

    Two flat images do not agree by being flat, and one bright pixel does not make the rest agree.
    """
    own = float(torch.minimum(one.std(), other.std()))
    off = float((one - other).square().mean().sqrt())
    if off == 0.0:
        return MOST_AGREEMENT
    return min(-20 * math.log10(USUAL_CONTRAST * off / max(own, LEAST_CONTRAST)), MOST_AGREEMENT)


def search_input(
    subject: Subject, share: GradientShare, recovery: Recovery | BatchRecovery, options: Options
) -> InputFinding | None:
    """Solve for the input, or those of a batch; match gradients if that explains nothing.

    None is returned if no time was given, or if nobody knows which input the model takes.
    """
    found = InputSearch(options.seconds)(subject, share, recovery)
    ending = _ending(found)
    if found.settled and found.solved is not None:
        told = _solution_described(found.solved, recovery, options)
        return replace(told, attempts={GAUSS_NEWTON.id: told.ending})
    if options.seconds <= 0 or subject.input_shape is None:
        return None
    outcome, why = ending
    beside = because(Why.NOT_PROVED, why=why) if outcome is not Outcome.NOT_APPLICABLE else None
    return replace(
        _match_described(found, recovery, options), beside=beside,
        certificate=None if found.solved is None else found.solved.certificate,
        attempts={GAUSS_NEWTON.id: ending},
    )  # fmt: skip


def _ending(found: Searched) -> Ending:
    """Return how Gauss–Newton ended."""
    if found.idle:
        return Outcome.NOT_APPLICABLE, found.idle
    if found.solved is None:
        return Outcome.NOT_CARRIED_OUT, found.failed or ""
    return Outcome.of(found.solved.proved), found.solved.message


def _match_described(
    searched: Searched, recovery: Recovery | BatchRecovery, options: Options
) -> InputFinding:
    """Return the image of the least misfit as a finding; the next one says how they agree."""
    every = [one for one in searched.ranked if one.input is not None]
    if not every or every[0].input is None:
        return not_run(MATCHING.name, searched.matched[0].message)
    best, *others = every
    to_pixels = normalisation_of(every[0].input, options.normalisation)
    pair = [one.input for one in (best, *others[:1]) if one.input is not None]
    pixels = [_rows(x, to_pixels, recovery) for x in pair]
    agreed = [agreement_of(*both) for both in zip(*pixels, strict=True) if len(both) > 1]
    agreement, shown = min(agreed, default=None), pixels[0]
    several = isinstance(recovery, BatchRecovery)
    reason = because(Why.MATCHED, several=several, misfit=best.misfit, agreement=agreement)
    return InputFinding(
        Method.MATCHING, reason, shown[0], to_pixels=to_pixels, misfit=best.misfit,
        agreement=agreement, batch=shown if several else (),
    )  # fmt: skip


def _rows(
    x: Tensor, to_pixels: Normalisation, recovery: Recovery | BatchRecovery
) -> tuple[Tensor, ...]:
    """Return the pixels of every input; one sample is a batch of one."""
    pixels = to_pixels.pixels(x)
    return tuple(pixels) if isinstance(recovery, BatchRecovery) else (pixels,)


def _solution_described(
    found: Reconstruction, recovery: Recovery | BatchRecovery, options: Options
) -> InputFinding:
    """Return an image that explains the share as a finding, with the PSNR that is predicted."""
    if found.input is None or found.certificate is None:
        return not_run(GAUSS_NEWTON.name, found.message)
    to_pixels = normalisation_of(found.input, options.normalisation)
    several, pixels = isinstance(recovery, BatchRecovery), _rows(found.input, to_pixels, recovery)
    reason = because(Why.SOLVED, several=several, open=found.certificate.undetermined)
    return InputFinding(
        Method.SOLVING, reason, pixels[0],
        found.certificate.psnr_predicted(to_pixels.scale), determined=found.proved,
        to_pixels=to_pixels, misfit=found.misfit, certificate=found.certificate,
        batch=pixels if several else (),
    )  # fmt: skip


FIRST_LAYER = Method("FIRST_LAYER", "closed form, from the first layer's update", exact=True)


def words_of_training(
    subject: Subject, share: GradientShare, options: Options
) -> InputFinding | None:
    """Return the words behind local training; None if the input is no text.

    Rows of a word table that no text uses do not move in any step, unless weights decay.
    """
    if not isinstance(subject.input_shape, InputSpec):
        return None
    return text_finding(read_bag(subject, share, "the update is one of several steps"))


def separate_inputs(
    subject: Subject, share: GradientShare, options: Options
) -> InputFinding | None:
    """Return what the first layer tells of the inputs behind local training, or why it is nothing.

    None leaves the update to matching, if one sample and a client that can be run were declared.
    """
    found = recover_trained_batch(subject, share, options.knowledge.of(share))
    if (told := first_inputs(found, options)) is not None:
        return told
    if found.size > 1:  # patterns were found, but not all of them
        return InputFinding(FIRST_LAYER, found.message)
    training, samples = share.made_by, options.knowledge.samples
    runs = training is not None and not training.unknowns and subject.tensor_shape is not None
    if samples == 1 and runs and options.seconds > 0:
        return None
    hint = because(Why.SAY_ONE_SAMPLE, message=found.message)
    return InputFinding(Method.NONE, found.message if samples else hint)


def first_inputs(found: BatchRecovery, options: Options) -> InputFinding | None:
    """Return the first of several inputs that the first layer tells as a finding, if it does."""
    if found.inputs is None:
        return None
    first = found.inputs[0]
    norm = normalisation_of(first, options.normalisation)
    off = found.input_error * float(norm.scale.max())
    predicted = math.inf if off == 0 else -20 * math.log10(off)
    return InputFinding(
        FIRST_LAYER, found.message, norm.pixels(first), predicted, determined=True, to_pixels=norm
    )  # fmt: skip


def match_client(subject: Subject, share: GradientShare, options: Options) -> InputFinding:
    """Match the unrolled client of one sample from two starts."""
    tries = [
        UnrolledMatching(seconds=options.seconds / 2, seed=seed)(subject, share) for seed in (0, 1)
    ]
    best, other = sorted(tries, key=lambda one: one.misfit)
    pixels = normalisation_of(best.input, options.normalisation)
    return InputFinding(
        Method.MATCHING, because(Why.UNROLLED),
        pixels.pixels(best.input), to_pixels=pixels, misfit=best.misfit,
        agreement=agreement_of(pixels.pixels(best.input), pixels.pixels(other.input)),
    )  # fmt: skip


@dataclass(frozen=True)
class Attack:
    """One attack, as the catalogue lists it."""

    id: str  # what machines call it
    name: str  # what people call it
    method: str = "It was added to this audit."  # how it works, in a sentence
    aim: Leak = Leak.INPUT  # what it recovers if it succeeds


@dataclass(frozen=True, kw_only=True)
class InputAttack(Attack):
    """An attack on the input behind the gradient of one sample, or behind local training."""

    # Return what was found behind a gradient, or behind local training of several steps; None if
    # the attack does not apply and nobody needs to hear of it.
    run: Callable[[Subject, GradientShare, Recovery, Options], InputFinding | None] | None = None
    trained: Callable[[Subject, GradientShare, Options], InputFinding | None] | None = None
    needs_feature: bool = True  # whether it starts from the feature before the last layer
    real_valued: bool = True  # whether it needs inputs of real numbers, which words are not
    refines: Method | None = None  # the method whose finding it may still improve

    def lacks(self, subject: Subject, recovery: Recovery) -> Reason | None:
        """Return what is missing for the attack on an update; None if nothing is."""
        if self.real_valued and isinstance(subject.input_shape, InputSpec):
            return because(Why.NOT_REAL_VALUED)
        lacking = self.needs_feature and recovery.feature is None
        return because(Why.NO_FEATURE) if lacking else None


QUOTIENT = InputAttack(
    "input-quotient", "Input by one division",
    "The gradient of the first layer's weight is divided by that of its bias, under any loss.",
    run=divide_input, needs_feature=False,
)  # fmt: skip
EMBEDDINGS = InputAttack(
    "input-embeddings", "Input from gradients of embeddings",
    "Patches or words are computed from the gradients of a transformer's embeddings.",
    run=invert_embedded, trained=words_of_training, needs_feature=False, real_valued=False,
)  # fmt: skip
INVERSION = InputAttack(
    "input-inversion", "Input, layer by layer",
    "The equations of every layer are solved backwards, with error bars.", run=invert_input,
    refines=Method.QUOTIENT,
)  # fmt: skip
MATCHING = InputAttack(
    "input-matching", "Input by gradient matching",
    "An image is sought from two starts whose gradient is the update.", run=search_input,
)  # fmt: skip
GAUSS_NEWTON = Attack(  # the first part of the search of ``MATCHING``
    "input-gauss-newton", "Input by Gauss–Newton",
    "All equations of a smooth network are solved together.",
)  # fmt: skip
LOCAL_FIRST_LAYER = InputAttack(
    "input-local-first-layer", "Inputs behind local training, from the first layer",
    "The update of a fully connected first layer is a sum over inputs that never change; its "
    "sparse vectors separate them.", trained=separate_inputs,
)  # fmt: skip
LOCAL_MATCHING = InputAttack(
    "input-local-matching", "Input behind local training, by matching",
    "The declared client is run on guesses that follow what its update leaves.",
    trained=match_client,
)  # fmt: skip
# The strongest first. A new attack is a row here, and nothing else.
INPUT_ATTACKS: list[InputAttack] = [
    QUOTIENT, EMBEDDINGS, INVERSION, MATCHING, LOCAL_FIRST_LAYER, LOCAL_MATCHING,
]  # fmt: skip


def recover_input(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> InputFinding:
    """Return the input by the strongest attack that succeeds, or the best that was found.

    Whatever goes wrong in an attack, in the model's own code or in torch, ends that attack with a
    reason and nothing else. Weight decay is undone first, in every way it may have been applied.
    """
    start = time.perf_counter()
    shares = [share]
    if not subject.head.each_token:
        factors = factor(subject.head, shares)
        faint = factors.sums[0] if bool(factors.rank_one) else None  # most products have no decay
        shares = [tried for tried, _ in without_decay(subject, share, sums=faint)] or shares
    best: InputFinding | None = None
    ended: dict[str, Ending] = {}
    for attack in INPUT_ATTACKS:
        if (run := attack.run) is None:
            continue
        if best is not None and best.leaked and attack.refines != best.method:
            ended[attack.id] = Outcome.NOT_CARRIED_OUT, because(Why.STRONGER_SUCCEEDED)
            continue
        if lacking := attack.lacks(subject, recovery):
            ended[attack.id] = Outcome.NOT_APPLICABLE, lacking
            continue
        tries = (
            (_attempted(attack, partial(run, subject, o, recovery, options)), o) for o in shares
        )
        done = [(found, one) for found, one in tries if found is not None]
        if not done:
            ended[attack.id] = Outcome.NOT_APPLICABLE, because(Why.OFFERS_NOTHING)
            continue
        found, kept = max(done, key=lambda pair: (pair[0].leaked, pair[0].quality))
        ended |= {attack.id: found.ending, **found.attempts}
        best = found if best is None else _better(best, found)
        shares = [kept]
    best = best or InputFinding(Method.NONE, because(Why.NO_FEATURE))
    return replace(best, seconds=time.perf_counter() - start, attempts=ended)


def trained_input(subject: Subject, share: GradientShare, options: Options) -> InputFinding:
    """Return the first input behind an update of several steps, or why none was attacked."""
    if not options.inputs:
        return InputFinding(Method.NONE, because(Why.NOT_ASKED), asked=False)
    for attack in INPUT_ATTACKS:
        if attack.trained is None:
            continue
        found = _attempted(attack, partial(attack.trained, subject, share, options))
        if found is not None:
            return found
    return InputFinding(Method.NONE, because(Why.OFFERS_NOTHING))


def batch_input(
    subject: Subject, share: GradientShare, samples: SamplesFinding, options: Options
) -> InputFinding:
    """Search for all inputs of an update of several samples, if one of its labels is proved."""
    if samples.found is None or not samples.proved or samples.pictures:
        return InputFinding(Method.NONE, because(Why.SEVERAL_MIXED))
    found = _attempted(MATCHING, partial(search_input, subject, share, samples.found, options))
    return found or InputFinding(Method.NONE, because(Why.NO_TIME_FOR_BATCH))


def input_of_any_loss(
    subject: Subject, share: GradientShare, options: Options
) -> InputFinding | None:
    """Return the inputs that the first layer tells of several samples, whatever the loss."""

    def tried() -> InputFinding | None:
        found = recover_trained_batch(subject, share, options.knowledge.of(share))
        return first_inputs(found, options)

    return _attempted(LOCAL_FIRST_LAYER, tried)


def not_run(name: str, error: str) -> InputFinding:
    """Return the finding of an attack that could not be carried out."""
    reason = because(Why.NOT_RUN, name=name, error=error)
    return InputFinding(Method.NONE, reason, failed_to_run=True)


def _attempted(attack: Attack, run: Callable[[], InputFinding | None]) -> InputFinding | None:
    """Return the outcome of an attack, or in one line why it could not be carried out."""
    start = time.perf_counter()
    try:
        found = run()
    except Exception as error:  # the model's own code and torch may raise anything
        found = not_run(attack.name, in_a_line(error))
    seconds = time.perf_counter() - start
    if found is None or not found.attacked:
        return found and replace(found, seconds=seconds)
    return replace(found, seconds=seconds, attempts={**found.attempts, attack.id: found.ending})


def _better(best: InputFinding, found: InputFinding) -> InputFinding:
    """Return the attempt whose image should be better, with a word on the other."""
    if best.leaked:  # and was refined, if that is any better
        enough = min(best.quality, SUFFICIENT_PSNR)
        return found if found.leaked and found.quality >= enough else best
    if found.pixels is None:
        return replace(best, beside=found.reason)
    if found.quality >= best.quality:
        return replace(found, instead_of=(*best.instead_of, best.reason))
    return replace(best, beside=because(Why.NO_BETTER, method=found.method.value))
