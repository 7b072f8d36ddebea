"""Inputs behind several local steps as an audit attacks them: where the first layer gives them."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from torch import Tensor

from softleak.audit.findings import Attempt, InputFinding, Method, PixelMap
from softleak.audit.input_attacks import (
    EMBEDDINGS,
    MATCHING,
    Agreement,
    Attack,
    not_run,
    search_input,
    text_finding,
)
from softleak.audit.options import Options
from softleak.audit.samples import SamplesFinding
from softleak.batches.sparse.inputs import recover_trained_batch
from softleak.core.input_spec import InputSpec
from softleak.core.results import BatchRecovery, Why, because
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.texts.read import read_bag
from softleak.matching.unrolled import UnrolledMatching

NOT_SEARCHED = InputFinding(Method.NONE, because(Why.SEVERAL_MIXED))


def batch_input(
    subject: Subject, share: GradientShare, samples: SamplesFinding, options: Options
) -> InputFinding:
    """Search for all inputs of an update of several samples, if one of its labels is proved.

    Each sample has its own label and feature as targets. The finding holds the first input, and
    all of them as its ``batch``.

    Args:
        subject: the model made ready.
        share: the gradient of one step on all samples.
        samples: what was found of the samples.
        options: how long to search, and how pixels became inputs.
    """
    if samples.found is None or not samples.proved or samples.pictures:
        return NOT_SEARCHED
    start = time.perf_counter()
    try:
        found = search_input(subject, share, samples.found, options)
    except Exception as error:  # the model's own code and torch may raise anything
        return not_run(MATCHING.name, error)
    if found is None:
        return InputFinding(Method.NONE, because(Why.NO_TIME_FOR_BATCH))
    attempts = found.attempts
    if found.method != Method.NONE:
        attempts += (Attempt(MATCHING.id, found.outcome, found.message),)
    return replace(found, seconds=time.perf_counter() - start, attempts=attempts)


FIRST_LAYER = Method("FIRST_LAYER", "closed form, from the first layer's update", exact=True)
LOCAL_FIRST_LAYER = Attack(
    "input-local-first-layer", "Inputs behind local training, from the first layer",
    "The update of a fully connected first layer is a sum over inputs that never change; its "
    "sparse vectors separate them.",
)  # fmt: skip
LOCAL_MATCHING = Attack(
    "input-local-matching", "Input behind local training, by matching",
    "The declared client is run on guesses that follow what its update leaves.",
)  # fmt: skip


def trained_input(subject: Subject, share: GradientShare, options: Options) -> InputFinding:
    """Return the inputs behind an update of several steps, or why they were not attacked.

    Of several inputs the finding holds the first, and says how many there are.
    """
    if not options.inputs:
        return InputFinding(Method.NONE, because(Why.NOT_ASKED), asked=False)
    start = time.perf_counter()
    try:
        shown = _shown(subject, share, options)
    except Exception as error:  # the model's own code and torch may raise anything
        return not_run("the attack on local training", error)
    return replace(shown, seconds=time.perf_counter() - start, attempts=_attempts(shown))


def _shown(subject: Subject, share: GradientShare, options: Options) -> InputFinding:
    """Return the inputs by the attack that applies: words of texts, or what the first layer tells.

    Rows of a word table that no text uses do not move in any step, unless weights decay.
    """
    if isinstance(subject.input_shape, InputSpec):
        return text_finding(read_bag(subject, share, "the update is one of several steps"))
    found = recover_trained_batch(subject, share, options.knowledge.of(share))
    if found.inputs is None:
        return _not_read(subject, share, options, found)
    return _described(found.inputs, found.input_error, found.message, options)


def _attempts(found: InputFinding) -> tuple[Attempt, ...]:
    """Return how the attack that was carried out ended; nothing if none was."""
    run = {
        Method.TEXT: EMBEDDINGS, FIRST_LAYER: LOCAL_FIRST_LAYER, Method.MATCHING: LOCAL_MATCHING
    }.get(found.method)  # fmt: skip
    return () if run is None else (Attempt(run.id, found.outcome, found.message),)


def _described(inputs: Tensor, error: float, message: str, options: Options) -> InputFinding:
    first = inputs[0]
    pixels = PixelMap.of(first, options.normalisation)
    off = error * float(pixels.scale.max())
    predicted = math.inf if off == 0 else -20 * math.log10(off)
    return InputFinding(
        FIRST_LAYER, message, pixels(first), predicted, determined=True, to_pixels=pixels
    )  # fmt: skip


def _not_read(
    subject: Subject, share: GradientShare, options: Options, found: BatchRecovery
) -> InputFinding:
    """Match the unrolled client where one sample was declared; else say what was not attacked."""
    if found.size > 1:  # patterns were found, but not all of them
        return InputFinding(FIRST_LAYER, found.message)
    training, samples = share.made_by, options.knowledge.samples
    runs = training is not None and not training.unknowns and subject.tensor_shape is not None
    if samples != 1 or not runs or options.seconds <= 0:
        hint = because(Why.SAY_ONE_SAMPLE, message=found.message)
        return InputFinding(Method.NONE, found.message if samples else hint)
    try:
        tries = [
            UnrolledMatching(seconds=options.seconds / 2, seed=seed)(subject, share)
            for seed in (0, 1)
        ]
    except Exception as error:  # the model's own code and torch may raise anything
        return not_run(MATCHING.name, error)
    best, other = sorted(tries, key=lambda one: one.misfit)
    pixels = PixelMap.of(best.input, options.normalisation)
    return InputFinding(
        Method.MATCHING, because(Why.UNROLLED),
        pixels(best.input), to_pixels=pixels, misfit=best.misfit,
        agreement=Agreement()(pixels(best.input), pixels(other.input)),
    )  # fmt: skip
