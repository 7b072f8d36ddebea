"""The words of a fit: what the numbers of an update say of each assumption, and what is assumed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from softleak.core.fit import Bearing, Explanation, Fit, Hypothesis, Topic
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery, Status
from softleak.core.vocabulary import written

HOLDS: Mapping[Topic, str] = {
    Topic.LOSS: "The rows of the head's gradient add up as those of a softmax cross-entropy do.",
    Topic.WEIGHTS: "The update was computed at these weights.",
    Topic.SIGN: "The sign is that of a gradient.",
    Topic.SCALE: "The update was not multiplied by a factor.",
    Topic.STEPS: "The head's gradient is that of one sample and one step.",
    Topic.NOISE: "There is no noise beyond rounding.",
    Topic.COMPRESSION: "Nothing was removed or rounded.",
    Topic.MODE: "The layers agree in the mode that the model was audited in.",
}
OPEN: Mapping[Topic, str] = {
    Topic.LOSS: "The numbers do not tell the loss.",
    Topic.WEIGHTS: "The numbers do not tell whether the update was computed at these weights.",
    Topic.SIGN: "The numbers do not tell the sign.",
    Topic.SCALE: "The numbers do not tell whether the update was multiplied by a factor.",
    Topic.STEPS: "The numbers do not tell how many samples or steps there were.",
    Topic.NOISE: "The numbers do not tell whether there is noise.",
    Topic.COMPRESSION: "The numbers do not tell whether anything was removed or rounded.",
    Topic.MODE: "The numbers do not tell in which mode the client ran the model.",
}
EXPLAINED: Mapping[Explanation, str] = {
    Explanation.BCE: "The update is that of a binary cross-entropy of several labels.",
    Explanation.MSE: "The update is that of a squared error.",
    Explanation.STATED: "The numbers are those of the loss that was stated.",
    Explanation.CE: "The rows of the head's gradient add up to zero, as those of a softmax "
    "cross-entropy do, which is not the loss that was stated.",
    Explanation.NO_LABEL: "The update means no label under the loss that was stated.",
    Explanation.MARGIN: "The update is that of a margin loss: all violated margins count alike.",
    Explanation.TEMPERATURE: "The loss divides the logits by a temperature of {number:.4g}.",
    Explanation.ANY_TEMPERATURE: "A loss that divides the logits by a temperature would send the "
    "same, with the same label and a feature that is so many times as long.",
    Explanation.OTHER_LOSS: "The update is not that of a softmax cross-entropy: the rows of the "
    "head's gradient do not add up to zero.",
    Explanation.OTHER_WEIGHTS: "The update was not computed at these weights: at them it means no "
    "label.",
    Explanation.SWAPPED: "The sign is the opposite of a gradient's: before and after are swapped, "
    "or a difference of weights was taken for a gradient.",
    Explanation.OTHER_SCALE: "The update is the gradient times {number:.4g}: a clipped, averaged "
    "or weighted loss, or another learning rate.",
    Explanation.TENSOR_FACTORS: "Tensors were multiplied by different factors, as layer-wise "
    "clipping or a learning rate for each layer leaves them.",
    Explanation.SEVERAL: "At least {number:.0f} gradients were added up: samples, or local steps.",
    Explanation.DECAY: "What no cross-entropy explains is parallel to the weights, as a weight "
    "decay of {number:.2g} leaves it.",
    Explanation.OTHER_STEPS: "What stands beside the samples is not noise, and not one plain step "
    "of a softmax cross-entropy: another loss, another optimiser, or several steps.",
    Explanation.OTHER_CLIENT: "The client that was stated makes this update of no label of one "
    "sample.",
    Explanation.ADAPTIVE: "All parameters moved by about the same amount, as several steps of "
    "Adam or AdamW leave them: signs are left, and not sizes.",
    Explanation.ABSENT: "Noise was declared that is not in the update.",
    Explanation.MEASURED: "There is independent noise of standard deviation {number:.2g}.",
    Explanation.SIGNS: "All entries have one size: the update is a sign pattern, as one step of "
    "Adam or signSGD leaves it.",
    Explanation.PRUNED: "Entries were removed: {number:.0%} of the head's gradient are zero where "
    "the model has none. The entries that are left are exact.",
    Explanation.GRID: "All values lie on a grid of spacing {number:.2g}: they were quantised.",
    Explanation.DROPOUT: "The model has dropout, and was audited without it: try --train-mode.",
    Explanation.FROZEN: "The last layer did not move although others did: it was frozen, or not "
    "sent.",
}


def fitting(one: Hypothesis) -> str:
    """Return a hypothesis in one sentence."""
    if one.explanation is not Explanation.NONE:
        return EXPLAINED[one.explanation].format(number=one.number or 0.0)
    if one.bearing is Bearing.HOLDS:
        return HOLDS[one.topic]
    return OPEN[one.topic]


TOPICS: Mapping[Topic, str] = {
    Topic.LOSS: "the loss",
    Topic.WEIGHTS: "the weights",
    Topic.SIGN: "the sign",
    Topic.SCALE: "the scale",
    Topic.STEPS: "one sample and one step",
    Topic.NOISE: "the noise",
    Topic.COMPRESSION: "no compression",
    Topic.MODE: "the mode of the model",
}
NAMES = {Bearing.CONTRADICTED: "contradicted", Bearing.OPEN: "left open", Bearing.HOLDS: "holds"}
SHOWN_FIRST = (Bearing.CONTRADICTED, Bearing.OPEN, Bearing.HOLDS)
MISFIT = "misfit"
NUMBERS: Mapping[Topic | Explanation, str] = {
    Topic.SCALE: "factor",
    Topic.NOISE: "standard deviation",
    Explanation.TEMPERATURE: "temperature",
    Explanation.SEVERAL: "gradients, at least",
    Explanation.DECAY: "decay",
    Explanation.PRUNED: "part that is zero",
    Explanation.GRID: "spacing",
}


def fit_rows(fit: Fit) -> list[dict[str, str]]:
    """Return a fit as rows of a table: what is contradicted first, what holds last."""
    ranked = sorted(fit.hypotheses, key=lambda one: SHOWN_FIRST.index(one.bearing))
    return [
        {
            "topic": one.topic.value,
            "assumed": TOPICS[one.topic],
            "bearing": NAMES[one.bearing],
            "slug": one.bearing.name.lower(),
            "instead": one.explanation.value,
            "number": _number(one),
            "sentence": one.sentence,
        }
        for one in ranked
    ]


def _number(one: Hypothesis) -> str:
    """Return the number that decides, with its name."""
    if one.number is None:
        return ""
    name = NUMBERS.get(one.explanation, NUMBERS.get(one.topic, MISFIT))
    return f"{name} {written(one.number)}"


def fit_data(fit: Fit) -> dict[str, Any]:
    """Return what the numbers say of every assumption, as data."""
    hypotheses = [
        {
            "name": one.topic.value, "state": one.bearing.value,
            "explanation": one.explanation.value, "number": one.number, "sentence": one.sentence,
        }
        for one in fit.hypotheses
    ]  # fmt: skip
    return {"holds": fit.holds, "hypotheses": hypotheses}


def _briefly(one: Hypothesis) -> str:
    if one.explanation is Explanation.ABSENT:
        return "declared noise absent"
    return one.explanation.value or one.topic.value


def fit_words(fit: Fit) -> str:
    """Return in a sentence how many assumptions a fit contradicts, leaves open and bears out."""
    count = {one: sum(h.bearing is one for h in fit.hypotheses) for one in Bearing}
    parts = [f"{n} {NAMES[one]}" for one in SHOWN_FIRST if (n := count[one])]
    return f"The fit of the update to what is assumed of it: {', '.join(parts)}."


def in_a_word(fit: Fit) -> str:
    """Return what a fit contradicts, or what explains the update, for a cell of a table."""
    against = [_briefly(one) for one in fit.contradicted]
    return ", ".join(against or sorted(e.value for e in fit.explanations))


OTHER_LOSS = "No attack here knows this loss: treat the label as one that leaks."
STATED_LOSS = "Audit again without the loss that was stated (--loss), or with the right one."
CLIENT = "Say how the client trained (--client), and audit again."
COMPRESSED = "Do not count on compression as a defence: what is left was not attacked in full."
REMEDIES: Mapping[Explanation, str] = {
    Explanation.MARGIN: OTHER_LOSS,
    Explanation.TEMPERATURE: OTHER_LOSS,
    Explanation.OTHER_LOSS: OTHER_LOSS,
    Explanation.CE: STATED_LOSS,
    Explanation.NO_LABEL: STATED_LOSS,
    Explanation.BCE: STATED_LOSS,
    Explanation.MSE: STATED_LOSS,
    Explanation.OTHER_WEIGHTS: "Audit again with the weights that this client was sent (--weights "
    "or --before), in the mode it trained in (--train-mode).",
    Explanation.SWAPPED: "Audit again with before and after exchanged, or say what the file holds "
    "(--kind).",
    Explanation.OTHER_SCALE: "Audit again without the scale that was stated (--kind), or say that "
    "it is not known (--unknown-scale).",
    Explanation.TENSOR_FACTORS: "Audit again with --unknown-scale: tensors were scaled apart.",
    Explanation.OTHER_STEPS: CLIENT,
    Explanation.OTHER_CLIENT: CLIENT,
    Explanation.ADAPTIVE: CLIENT,
    Explanation.ABSENT: "Find out why the noise that was declared is not in the update, and do not "
    "count on it.",
    Explanation.SIGNS: COMPRESSED,
    Explanation.PRUNED: COMPRESSED,
    Explanation.GRID: COMPRESSED,
    Explanation.DROPOUT: "Audit again with --train-mode.",
    Explanation.FROZEN: "Name the layer that was trained last (--head).",
}


def remedies(fits: Iterable[Fit]) -> Iterator[str]:
    """Yield what to do where updates contradict what was assumed of them, each thing once."""
    found = {one.explanation for fit in fits for one in fit.contradicted}
    yield from dict.fromkeys(REMEDIES[one] for one in Explanation if one in found & REMEDIES.keys())


LOSS_NAMES: Mapping[str, str] = {
    "ce": "softmax cross-entropy",
    "bce": "binary cross-entropy of several labels",
    "mse": "squared error",
    "next-token": "cross-entropy of the next token",
}


def loss_known(recovery: Recovery) -> str:
    """Return which loss the attacker takes for granted, and whether the numbers bear it out."""
    name, one = LOSS_NAMES.get(recovery.loss.name, recovery.loss.name), recovery.fit[Topic.LOSS]
    if one.bearing is Bearing.CONTRADICTED:
        return f"taken for {name}, which the update contradicts ({one.explanation.value})"
    if one.bearing is Bearing.OPEN:
        return f"taken for {name}; the numbers do not tell"
    return (
        f"{name}, {'as the numbers show' if one.explanation.value else 'borne out by the update'}"
    )


def resting_on(knowledge: Knowledge, recovery: Recovery) -> Iterator[str]:
    """Yield what an answer rests on, in sentences, without what the update contradicts."""
    against = {one.topic for one in recovery.fit.contradicted}
    several = recovery.status is Status.NOT_SINGLE
    yield from _of_gradient(recovery, several, against)
    if knowledge.client is not None and not {Topic.STEPS, Topic.WEIGHTS} & against:
        yield f"The client trained as was said ({knowledge.client}), from these weights."
    if Topic.SCALE not in against:
        yield _of_scale(knowledge, recovery)
    if Topic.COMPRESSION not in against or recovery.noise:
        yield _of_noise(knowledge, recovery, Topic.NOISE in against)
    if recovery.status is Status.UNIQUE:
        yield _of_label(knowledge, recovery)


def _of_gradient(recovery: Recovery, several: bool, against: set[Topic]) -> Iterator[str]:
    """Yield what is assumed of loss, sample, model, weights, mode and sign."""
    name = LOSS_NAMES.get(recovery.loss.name, recovery.loss.name)
    which = "cross-entropy" if recovery.loss.name == "ce" else name
    loss = "" if Topic.LOSS in against else f"the {which} of "
    steps = "several samples or steps" if several or Topic.STEPS in against else "one sample"
    weights = "" if Topic.WEIGHTS in against else " and these weights"
    said = f"The gradient is that of {loss}{steps}, with this model{weights}"
    if Topic.SIGN in against:
        yield f"{said}."
    elif several:
        yield f"{said}; its sign is as it was said or taken to be."
    else:
        mode = {Topic.MODE, Topic.WEIGHTS} & against
        yield f"{said}{'' if mode else ', in the mode it was audited in'}."
    if against:
        names = [TOPICS[topic] for topic in Topic if topic in against]
        yield f"The update contradicts what would else be assumed: {', '.join(names)}."


def _of_scale(knowledge: Knowledge, recovery: Recovery) -> str:
    scale = recovery.fit[Topic.SCALE]
    if scale.explanation is Explanation.OTHER_SCALE:
        return scale.sentence
    if knowledge.scale_unknown:
        return "The update was multiplied by an unknown positive factor."
    return "The update was not multiplied by a factor (clipping, learning rate, averaging)."


def _of_noise(knowledge: Knowledge, recovery: Recovery, absent: bool) -> str:
    if knowledge.noise and not absent:
        return (
            f"Every entry carries independent noise of standard deviation {knowledge.noise:g}, "
            "as declared."
        )
    if recovery.noise:
        return (
            "Whatever one sample cannot explain is assumed to be independent noise of equal size "
            "on every entry."
        )
    return "The update carries no noise beyond the rounding of its number format."


def _of_label(knowledge: Knowledge, recovery: Recovery) -> str:
    if knowledge.other_loss is not None:
        return f"The loss was stated: {LOSS_NAMES.get(recovery.loss.name, recovery.loss.name)}."
    loss = recovery.fit[Topic.LOSS].explanation
    if loss is Explanation.ANY_TEMPERATURE:
        return (
            "The label is one-hot, smoothed, or a smoothed mix of two classes. The length of the "
            "feature is that under a loss without a temperature, which the numbers do not tell."
        )
    if loss is not Explanation.NONE:
        return (
            "The loss was not stated: it is the one under which the numbers mean a label of zeros "
            "and ones, perhaps smoothed."
        )
    if knowledge.family is not None:
        return f"The label belongs to the family {knowledge.family}, as was said."
    if any(piece.agrees for piece in recovery.evidence):
        return "Nothing is assumed of the label: evidence from other layers decides."
    return "The label is one-hot, smoothed, or a smoothed mix of two classes."
