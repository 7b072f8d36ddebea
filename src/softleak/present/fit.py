"""The sentences of a fit: what the numbers of an update say of each assumption."""

from __future__ import annotations

from collections.abc import Mapping

from softleak.core.fit import Bearing, Explanation, Hypothesis, Topic

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
    Explanation.MARGIN: "The update is that of a margin loss: all violated margins count alike.",
    Explanation.TEMPERATURE: "The loss divides the logits by a temperature of {number:.4g}.",
    Explanation.OTHER_LOSS: "The update is not that of a softmax cross-entropy: the rows of the "
    "head's gradient do not add up to zero.",
    Explanation.OTHER_WEIGHTS: "The update was not computed at these weights: at them it means no "
    "label. Give the weights that the client was sent, in the mode it used.",
    Explanation.SWAPPED: "The sign is the opposite of a gradient's: before and after are swapped, "
    "or a difference of weights was taken for a gradient.",
    Explanation.OTHER_SCALE: "The update is the gradient times {number:.4g}: a clipped, averaged "
    "or weighted loss, or another learning rate.",
    Explanation.TENSOR_FACTORS: "Tensors were multiplied by different factors, as layer-wise "
    "clipping or a learning rate for each layer leaves them.",
    Explanation.SEVERAL: "At least {number:.0f} gradients were added up: samples, or local steps.",
    Explanation.DECAY: "What no cross-entropy explains is parallel to the weights, as weight decay "
    "leaves it.",
    Explanation.OTHER_STEPS: "What stands beside the samples is not noise, and not one plain step "
    "of a softmax cross-entropy: another loss, another optimiser, or several steps.",
    Explanation.ADAPTIVE: "All parameters moved by about the same amount, as several steps of "
    "Adam or AdamW leave them: signs are left, and not sizes.",
    Explanation.ABSENT: "Noise was declared that is not in the update.",
    Explanation.MEASURED: "There is independent noise of standard deviation {number:.2g}.",
    Explanation.SIGNS: "All entries have one size: only signs are left, as one step of Adam or "
    "signSGD leaves them.",
    Explanation.PRUNED: "Entries were removed: {number:.0%} of the head's gradient are zero where "
    "the model has none. The entries that are left are exact.",
    Explanation.GRID: "All values lie on a grid of spacing {number:.2g}: they were quantised.",
    Explanation.DROPOUT: "The model has dropout, and was audited without it: try --train-mode.",
}


def fitting(one: Hypothesis) -> str:
    """Return a hypothesis in one sentence."""
    if one.explanation is not Explanation.NONE:
        return EXPLAINED[one.explanation].format(number=one.number or 0.0)
    if one.bearing is Bearing.HOLDS:
        return HOLDS[one.topic]
    return OPEN[one.topic]
