"""The sentence of every reason: a table from kinds of reasons to words.

A row is a text whose braces name the reason's fields, or a function of these fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from softleak.core.results import Reason, Told, Why
from softleak.present.fit import LOSS_NAMES


def _matched(several: bool, misfit: float, agreement: float | None) -> str:
    which = "these images" if several else "this image"
    agreed = "" if agreement is None else f", and two starts agree to {agreement:.0f} dB"
    return (
        f"gradients were matched: that of {which} differs from the update's by {misfit:.0%}{agreed}"
    )


def _solved(several: bool, open: int) -> str:
    fulfil = "these images fulfil" if several else "this image fulfils"
    every = f"all but {open} directions" if open else "every pixel"
    return f"the equations of all layers determine {every}, and {fulfil} them to within rounding"


def _otherwise(classes: tuple[int, ...]) -> str:
    return (
        "if the file holds a difference of weights (after − before), not a gradient, the classes "
        f"are {', '.join(map(str, classes))} instead: say --kind"
    )


def _parts(parts: tuple[tuple[int, float, float, float], ...], message: str) -> str:
    listed = ", ".join(
        f"class {i} {100 * mean:.0f} % ({100 * low:.0f} to {100 * high:.0f})"
        for i, mean, low, high in parts
    )
    return f"parts of the classes, with 90 % intervals: {listed} ({message})"


def _under(words: str) -> Callable[..., str]:
    """Return a function that fills in the name of a loss."""
    return lambda loss: words.format(loss=LOSS_NAMES.get(loss.name, loss.name))


def _of_several_attacks(reasons: Sequence[Told], beside: Told | None) -> str:
    """Return what each attack found, the last one's finding counting, and what came of another."""
    return _all_of([", so ".join(map(str, reasons)), *([] if beside is None else [beside])])


def _all_of(reasons: Sequence[Told]) -> str:
    return "; ".join(map(str, reasons))


def _another_reading(sign: float, class_index: int | None) -> str:
    what = "another scale" if sign > 0 else "another scale and sign (a difference of weights)"
    return (
        f"taken as the gradient itself, the update means no label at all; at {what} it means one "
        f"label, of class {class_index}. If you know which, say so by the kind of the update"
    )


SENTENCES: dict[Why, str | Callable[..., Any]] = {
    Why.NO_HEAD_WEIGHT: "the update lacks the gradient of the head's weight",
    Why.ZERO_HEAD: "the gradient of the head's weight is exactly zero",
    Why.NO_LABEL_OF_LOSS: _under("the update means no label under the {loss}"),
    Why.NO_LABEL_OF_FAMILY: "the label that the update means does not belong to {family}",
    Why.UNDER_STATED_LOSS: _under(
        "the residual is known, and means this label under the {loss}, which was stated"
    ),
    Why.LOSS_NOT_TESTED: _under(
        "the residual is known, and means this label under the {loss}; but nothing in the numbers "
        "tests that loss, or the factor of the update"
    ),
    Why.ANY_SCALAR_FITS: _under(
        "under the {loss} the head's weight gradient alone means a label at every scalar: the "
        "head's bias or evidence of another layer would decide"
    ),
    Why.STEPS_OF_LOSS: _under(
        "several steps under the {loss} were not attempted: they are undone for the plain softmax "
        "cross-entropy, and for losses of which each output has a term of its own"
    ),
    Why.STEPS_OF_LAYERS: _under(
        "several steps of all layers under the {loss} were not undone: no first fully connected "
        "layer shows the input, so the client could not be run on it again"
    ),
    Why.SEVERAL_RANK: "the head's gradient is the sum of at least {rank} samples or steps",
    Why.FULL_RANK: "the head's gradient has full rank {rank}: noise, or several samples or steps",
    Why.TAGS_BEHIND_NOISE: "there is noise of standard deviation {noise:.2g} on the head's "
    "gradient: each label has a probability, and all are right with one of {confidence:.2g}",
    Why.TAGS_HIDDEN: "noise of standard deviation {noise:.2g} hides the head's gradient, and the "
    "features of this model have no usual direction in which it would show: no label is claimed",
    Why.NOISE_AT_ANY_SCALE: "there is noise of standard deviation {noise:.2g} on the head's "
    "gradient, and its factor is unknown: labels behind both were not attempted",
    Why.NEXT_TOKENS: "the model predicts the next token at every place: its labels are the words "
    "of the text itself",
    Why.NOT_ASKED: "inputs were not asked for",
    Why.ONLY_SIGNS: "the update is a pattern of signs, not a gradient",
    Why.SEVERAL_MIXED: "the update mixes several samples or steps",
    Why.NO_FEATURE: "no feature was recovered to start from",
    Why.NOT_RUN: "{name} could not be carried out: {error}",
    Why.OFFERS_NOTHING: "the model or the update offers nothing to it",
    Why.STRONGER_SUCCEEDED: "a stronger attack had recovered the input already",
    Why.NOT_REAL_VALUED: "words are not real numbers",
    Why.NO_FINITE_SOLUTION: "the equations have no finite solution",
    Why.DIVIDED: "the gradient of {layer}.weight, divided by that of {layer}.bias, is the input, "
    "and the model makes the recovered feature of it",
    Why.DIVIDED_TO_A_FACTOR: "the gradient of {layer}.weight, divided by that of {layer}.bias, is "
    "the input up to a factor; the model does not confirm it, at these weights or in this mode",
    Why.NOT_BORNE_OUT: "the equations of every layer determined an input, but the model does not "
    "make of it what the update shows",
    Why.TO_A_FACTOR: "{message}, but for one factor that the forward pass does not tell",
    Why.DETERMINED: "every layer's equations determined its input, and agree",
    Why.UNDETERMINED: "some layer's equations do not determine its input, or contradict each other",
    Why.MATCHED: _matched,
    Why.SOLVED: _solved,
    Why.UNROLLED: "the client was run on guesses, which followed what its update leaves",
    Why.NOT_PROVED: "Gauss–Newton proved no image: {why}",
    Why.NO_BETTER: "{method} was tried and is no better",
    Why.NO_TIME: "no time was given to search for inputs",
    Why.NO_TIME_FOR_BATCH: "no time was given to search for the inputs of the batch",
    Why.NO_SHAPE: "the shape of an input is not known",
    Why.TOO_MANY_UNKNOWNS: "{unknowns} unknown numbers are too many; an audit solves for {most}",
    Why.SAY_ONE_SAMPLE: "{message} Say --samples 1 if it is one sample: it is then matched.",
    Why.LABEL_READ: "the label of a single sample was read instead",
    Why.NO_SIGN_ATTACK: "no attack applies",
    Why.NO_SIGN_ATTACK_ON_SIGNS: "no attack applies, as the head has no bias",
    Why.SIGNS_PROVE: "every entry of the head's gradient has the same size, as one step of Adam or "
    "signSGD leaves it; its signs prove {classes} classes",
    Why.DECAY_UNDONE: "weight decay of {decay:.2g} undone, {message}",
    Why.SCALE_UNKNOWN: "classes were not counted, because the scale of the update is unknown",
    Why.OTHERWISE: _otherwise,
    Why.NOT_ONE_STEP: "it is not one step on {samples} samples, so that classes were not counted",
    Why.COUNTED: "the bounds of counts hold if it is the mean gradient of one step on {samples} "
    "samples",
    Why.COUNTS_ESTIMATED: "the counts are an estimate whose error is not known",
    Why.TOO_FEW_SAMPLES: "its classes take {least} samples or more if each sample has one class, "
    "and {samples} were said: either labels are mixed, or it is not the mean gradient of one step "
    "on {samples} samples, so that classes were not counted",
    Why.PARTS: _parts,
    Why.PARTS_NOT_ESTIMATED: "parts of the classes were not estimated: {error}",
    Why.NOT_COUNTED: "samples of each class were not counted: {why}",
    Why.SIGNS_OF_SEVERAL: "the update is a pattern of signs",
    Why.NOT_ATTACKED: "not attacked: {why}",
    Why.NOT_SEVERAL: "nothing shows that there are several samples",
    Why.ALL_OF: _all_of,
    Why.OF_SEVERAL_ATTACKS: _of_several_attacks,
    Why.ANOTHER_READING: _another_reading,
}


def sentence(reason: Reason) -> str:
    """Return a reason in words, with its further remarks."""
    words = SENTENCES[reason.kind]
    fields = dict(reason.fields)
    said = words.format(**fields) if isinstance(words, str) else words(**fields)
    return _all_of([said, *reason.notes])
