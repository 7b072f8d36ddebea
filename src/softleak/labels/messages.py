"""Put an answer into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch

from softleak.core.families import AnyLabel, Family, Mixed, OneHot, Smoothed, SmoothedMixed
from softleak.core.results import Candidate, Evidence, Reading, Recovery


@dataclass(frozen=True, eq=False)
class Fitting:
    """The candidates that fit, the bound of the label's error, and what counts as one answer."""

    candidates: Sequence[Candidate]
    error: float
    tolerance: float

    @property
    def width(self) -> float:
        """Return how far apart the labels of one candidate can be."""
        return max(candidate.width for candidate in self.candidates)

    @property
    def one(self) -> bool:
        """Return whether there is one solution, and only rounding in it."""
        return len(self.candidates) == 1 and self.width <= self.tolerance

    @property
    def words(self) -> str:
        """Return how many there are, and how far apart."""
        if self.one:
            return f"one solution, whose label is known to {self.error:.2g} in L1"
        count, width = len(self.candidates), self.width
        if width > self.tolerance:
            several = "" if count == 1 else f"{count} separate solutions, among them "
            return f"{several}a continuum of scalars whose labels differ by up to {width:.2g} in L1"
        labels = torch.stack([candidate.label for candidate in self.candidates])
        apart = float(torch.cdist(labels, labels, p=1).max())
        return f"{count} separate solutions, whose labels are up to {apart:.2g} apart in L1"


class Doubt(Enum):
    """The reasons why a label that fits need not be the only one."""

    FEW = "too few classes for the assumed family to single out a label"
    PREDICTION = (
        "the label may equal the model's own prediction to within rounding, and then the gradient "
        "is made of rounding errors"
    )
    SIGN = (
        "the factor of the share is unknown: the label lies on a segment if it is positive, and "
        "elsewhere if the share is a difference of weights (after − before)"
    )
    COARSE = "the share is so coarse that rounding may have moved the label anywhere near here"
    UNSIGNED = (
        "rounding outweighs the evidence of other layers, so that even the sign of the feature is "
        "open"
    )
    FLAT = (
        "at some factor the label has all classes alike, and so has that of every loss that "
        "smooths the model's own prediction"
    )
    FACTOR = "the factor of the share is unknown, and labels at several factors fit"
    STRENGTH = (
        "the prediction is so sure that labels of the same kind fit at every factor: how much the "
        "label is smoothed or mixed can be told only if the share is known to be the gradient "
        'itself; if it is, say scale="known"'
    )
    CHANCE = "too few equations depend on the scalar to rule out that the family fits by chance"
    TWO_CLASSES = (
        "with two classes the head's gradient of a batch looks like that of one sample, and no "
        "other layer of this share shows that it is one"
    )
    STEPS = (
        "the share is larger than the gradient itself: if it is a difference of checkpoints, "
        "several steps were taken, whose predictions differ, or the learning rate was another"
    )
    ARBITRARY = (
        "read as the gradient itself, the share means a label of no simple kind; read as a "
        "multiple of the gradient it means another label, and nobody stated the factor. If it is "
        'the gradient of the plain loss itself, say scale="known" (for a file: --kind gradient)'
    )
    SCALED_DOWN = (
        "the label is almost the model's own prediction, which is the mark of a share that was "
        "scaled down by a learning rate, an average or clipping; if it is the gradient itself, "
        'say scale="known", else scale="unknown"'
    )
    UNBALANCED = (
        "the head's gradient is a product as that of one sample is, but its rows do not add up "
        "to zero: the label equals the model's own prediction to within rounding, the loss is "
        "not a softmax cross-entropy, or rows were altered"
    )
    CLIENT_UNTESTED = (
        "the label is that of the client as it was said, but it is of no simple family, and "
        "any update would have such a label: nothing bears out the steps, rate and momentum"
    )
    CLIENT_OPEN = (
        "one label fits the client as it was said, but at another rate or number of steps "
        "another label would fit as well: the model is too sure of itself to tell"
    )


NOT_STATED = (
    "nobody vouched that the share is the gradient of the plain loss itself, neither scaled nor "
    "weighted, which is assumed"
)


POSITIVE = "the factor of the share is unknown and assumed to be positive"
ONE_STEP = "if it is a difference of checkpoints, it is assumed to be one step"


def explain_reading(reading: Reading, otherwise: bool) -> str:
    """Return both readings of a share in words; ``otherwise``: scale one has a label too."""
    what = f"a label that is {FAMILY_NAMES[reading.family]}, of class {int(reading.label.argmax())}"
    how = (
        "a difference of weights (after − before), not a gradient" if reading.scale < 0
        else "an averaged or weighted loss, clipping or another learning rate"
    )  # fmt: skip
    first = (
        "taken as the gradient itself, the share means a label of no simple kind" if otherwise
        else "taken as the gradient itself, the share means no label at all"
    )  # fmt: skip
    if reading.temperature != 1:
        return (
            f"{first}; with a loss that divides the logits by a temperature of "
            f'{reading.temperature:.4g} it means {what}. If the loss has none, say scale="known"'
        )
    return (
        f"{first}; multiplied by {reading.scale:.4g} ({how}) it means {what}. If you know which, "
        'say so by scale="known", scale="unknown" or the kind of the share'
    )


FAMILY_NAMES: Mapping[object, str] = {
    OneHot(): "one-hot",
    Smoothed(): "smoothed",
    Mixed(2): "a mix of two classes",
    SmoothedMixed(2): "a smoothed mix of two classes",
}


def describe_family(family: object) -> str:
    """Return what labels of a family are, in words."""
    if family == SmoothedMixed(2):
        return "one-hot, smoothed or a smoothed mix of two classes"
    known = next((words for one, words in FAMILY_NAMES.items() if one == family), None)
    return known or f"of the family {family}"


def why(
    unique: bool, doubt: Doubt | None, fitting: Fitting, family: Family,
    conflicts: Sequence[Evidence], decided: bool, coarse: bool,
) -> str:  # fmt: skip
    """Return why the answer is what it is, given the candidates that fit."""
    if conflicts:
        names = ", ".join(piece.parameter for piece in conflicts)
        if coarse:
            return (
                f"the share is so coarse that its layers disagree ({names}): rounding of the "
                "weights outweighs the step"
            )
        if decided:
            return (
                f"pieces of evidence disagree: {names} contradicts the rest; the share was altered"
            )
        return (
            f"a label of the assumed family fits, but the evidence of {names} does not hold: the "
            "share was altered, carries noise, or was computed in another mode of the model"
        )
    if unique:
        assumed = f"the family: it is assumed to be {describe_family(family)}"
        evidence = ["evidence from other layers"] if decided else []
        by = " and ".join([*evidence, *([] if isinstance(family, AnyLabel) else [assumed])])
        return f"one label explains the gradient of the cross-entropy loss, by {by}"
    found = fitting.words
    if doubt is not None:
        return f"{doubt.value}: {found}, or others"
    if fitting.one:
        return found
    return f"explained equally well as the gradient of the cross-entropy loss: {found}"


def with_note(answer: Recovery, note: str) -> Recovery:
    """Return an answer whose message ends with a further remark."""
    return replace(answer, reason=f"{answer.message}; {note}")


def why_none(family: Family, evidence: bool) -> str:
    """Return why no scalar fits."""
    if isinstance(family, AnyLabel) and evidence:
        return (
            "the evidence gives a scalar whose label is no probability distribution: the share was "
            'scaled (try scale="unknown"), altered, or computed in another mode of the model'
        )
    return f"no scalar gives a label that is {describe_family(family)}"
