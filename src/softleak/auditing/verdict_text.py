"""This module puts findings into plain words.

An attack that did not succeed is called that, never "safe".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from softleak.auditing.composition import CompositionFinding, Counts
from softleak.auditing.findings import LabelLeak, Method
from softleak.auditing.rates import Leak, State
from softleak.auditing.reports import AuditReport
from softleak.auditing.sample_text import features_words, inputs_words, samples_words
from softleak.auditing.token_names import TokenNames
from softleak.auditing.wording import FAILED, TEXT, class_name, describe, written
from softleak.inversion.texts.read_embeddings import FROM_EMBEDDINGS
from softleak.inversion.texts.text_result import Certainty


def label_words(report: AuditReport, names: Sequence[str]) -> str:
    """Return what was proved of the label."""
    recovery, leak = report.label.recovery, report.label.leak
    if report.samples.attacked:
        return samples_words(report.samples)
    if leak is LabelLeak.UNIQUE and recovery.label is not None:
        return (
            f"{describe(recovery.label, names)}; off by at most {written(recovery.error)} in L1, "
            "proved without the truth"
        )
    if leak is LabelLeak.CLASS and report.label.class_index is not None:
        name = class_name(report.label.class_index, names)
        return f"the class is {name}; its weight is not determined: {recovery.message}"
    if leak is LabelLeak.PROBABLE and recovery.label is not None:
        name = class_name(int(recovery.label.argmax()), names)
        return (
            f"the class is {name} with a probability of {recovery.confidence or 0:.1%}: the share "
            f"carries noise of standard deviation {written(recovery.noise)}; the likeliest label "
            f"is {describe(recovery.label, names)}"
        )
    if leak is LabelLeak.AMBIGUOUS:
        return f"one of a set of labels: {recovery.message}"
    if report.states[Leak.LABEL] is State.NOT_ATTACKED:
        return f"not attacked: {report.why}"
    return f"no label: {report.why}; {FAILED}"


def in_brief(
    report: AuditReport, names: Sequence[str], say: Callable[[Tensor, Sequence[str]], str]
) -> str:
    """Return the label in the words of ``say`` if it was proved, else the class or a reason."""
    recovery = report.label.recovery
    if report.label.leak is LabelLeak.UNIQUE and recovery.label is not None:
        return say(recovery.label, names)
    if report.label.class_index is not None:
        return class_name(report.label.class_index, names)
    if report.samples.proved:
        labels = [say(one.label, names) for one in report.samples.proved if one.label is not None]
        return " | ".join(labels[: TEXT.samples])
    if report.composition.present:
        return _classes(report.composition.present, names)
    return report.notes[0] if report.notes else recovery.status.value


def feature_words(report: AuditReport) -> str:
    """Return what was proved of the input of the last layer."""
    if report.samples.attacked:
        return features_words(report.samples)
    if report.feature.proved:
        error = written(report.feature.error)
        return f"all {report.feature.entries} entries, to a relative error of {error}"
    if report.states[Leak.FEATURE] is State.NOT_ATTACKED:
        return "not attacked: the update mixes several samples or steps"
    return f"not proved; {FAILED}"


def input_words(report: AuditReport) -> str:
    """Return what was recovered of the input."""
    if report.samples.inputs:
        return inputs_words(report.samples)
    found, told = report.input, None if report.score is None else report.score.psnr
    if found.method == Method.NONE:
        return f"not attacked: {found.message}"
    if found.text is not None:
        return text_words(report)
    if found.pixels is None:
        return f"not recovered: {found.message}; {FAILED}"
    quality = "" if found.psnr_predicted is None else f"predicted {found.psnr_predicted:.0f} dB, "
    quality += "" if told is None else f"{told:.0f} dB against the truth, "
    said = f"{quality}by {found.method.value}: {found.message}"
    if not report.shows_input:
        return f"not determined, {said}; {FAILED}"
    if report.score is None and found.doubtful:
        return f"perhaps recognisable, as a prediction may be 2 dB too low; {said}"
    return said if found.leaked and found.method.exact else f"recognisable, {said}"


def text_words(report: AuditReport) -> str:
    """Return the text as it was read, and how certain its words are."""
    text, names = report.input.text, report.tokens
    if text is None:
        return ""
    places = [place for place in text.places if place.certainty is not Certainty.EMPTY]
    if not places:
        occur = _some_words(text.words, names)
        return f"these words occur: {occur}; {text.message}" if occur else text.message
    sure = text.count(Certainty.CERTAIN)
    right = None if report.score is None else report.score.tokens_right
    told = "" if right is None else f"; {right:.1%} of the true words are in their place"
    said = names.sentence([place.token for place in places])
    known = text.method == FROM_EMBEDDINGS  # else candidates were only not excluded
    open_ = {token for place in places for token in place.candidates if known}
    seem = f"; these words seem to occur: {_some_words(sorted(open_), names)}" if open_ else ""
    return f"“{said}”: {sure} of {len(places)} words certain{told}; {text.message}{seem}"


def _some_words(tokens: Sequence[int], names: TokenNames) -> str:
    listed_ = ", ".join(names.name(token) for token in tokens[: TEXT.words])
    more = f" and {len(tokens) - TEXT.words} more" if len(tokens) > TEXT.words else ""
    return listed_ + more


def composition_words(report: AuditReport, names: Sequence[str]) -> str:
    """Return which classes are among the labels, and how often each."""
    found = report.composition
    if not found.attacked:
        known = report.states[Leak.COMPOSITION] is State.LEAKED
        return "that of the label above" if known else found.message
    if not found.present:
        return f"no class: {found.message}; {FAILED}"
    said = f"{_classes(found.present, names)}, proved without the truth: {found.message}"
    return said if found.counts is None else f"{said}; counts: {_counted(found, names)}"


def _classes(present: Sequence[int], names: Sequence[str]) -> str:
    listed_ = ", ".join(class_name(i, names) for i in present[: TEXT.classes])
    return listed_ + (
        f" and {len(present) - TEXT.classes} more" if len(present) > TEXT.classes else ""
    )


def _counted(found: CompositionFinding, names: Sequence[str]) -> str:
    """Return the estimate of every class that occurs, with its bounds."""
    counts: Counts | None = found.counts
    if counts is None:
        return ""
    some = [i for i, n in enumerate(counts.estimated) if n or i in found.present][: TEXT.classes]
    return ", ".join(
        f"{class_name(i, names)} {counts.estimated[i]}"
        + (f" ({counts.low[i]} to {counts.high[i]})" if counts.low else "")
        for i in some
    )
