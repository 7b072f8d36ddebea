"""Findings in plain words. What did not succeed is called that, never "safe"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from softleak.audit.composition import CompositionFinding, Counts
from softleak.audit.findings import InputFinding, LabelLeak, Method
from softleak.audit.rates import Leak, State
from softleak.audit.reports import AuditReport
from softleak.results import Recovery, Status

SHOWN = 3  # entries of a label
WORTH = 5e-4  # smaller entries are not worth a place
FAILED = "this attack did not succeed"
MANY = 20  # classes that are listed


def assumptions(
    recovery: Recovery, found: InputFinding, scale_unknown: bool, noise: float
) -> tuple[str, ...]:
    """What the proofs rest on."""
    said = [
        "The gradient is that of the cross-entropy of one sample, with this model and these weights"
        ", in the mode it was audited in.",
        "The share was multiplied by an unknown positive factor."
        if scale_unknown
        else "The share was not multiplied by a factor (clipping, learning rate, averaging).",
        f"Every entry carries independent noise of standard deviation {noise:g}, as declared."
        if noise
        else "What is not that of one sample is noise, alike on every entry."
        if recovery.noise
        else "The share carries no noise beyond the rounding of its number format.",
    ]
    if recovery.status is Status.UNIQUE:
        decided = any(piece.agrees for piece in recovery.evidence)
        said.append(
            "Nothing is assumed of the label: evidence from other layers decides."
            if decided
            else "The label is one-hot, smoothed, or a smoothed mix of two classes."
        )
    if recovery.status is Status.NOT_SINGLE:
        said[0] = (
            "The gradient is that of the cross-entropy of several samples or steps, with this "
            "model and these weights; its sign is as it was said or taken to be."
        )
    if found.method is Method.MATCHING:
        said.append(
            "The image that was found by matching gradients is a candidate, not a proof: it counts "
            "as leaked if it explains the share and a second start led to the same image."
        )
    elif found.pixels is not None:
        said.append("A predicted error is evidence that the input leaks, not a proof.")
    return tuple(said)


def label_words(report: AuditReport, names: Sequence[str]) -> str:
    """What was proved of the label."""
    recovery, leak = report.label.recovery, report.label.leak
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
    """The label if it was proved, as ``say`` has it; else the class, or why there is none."""
    recovery = report.label.recovery
    if report.label.leak is LabelLeak.UNIQUE and recovery.label is not None:
        return say(recovery.label, names)
    if report.label.class_index is not None:
        return class_name(report.label.class_index, names)
    if report.composition.present:
        return _classes(report.composition.present, names)
    return report.notes[0] if report.notes else recovery.status.value


def feature_words(report: AuditReport) -> str:
    """What was proved of the input of the last layer."""
    if report.feature.proved:
        error = written(report.feature.error)
        return f"all {report.feature.entries} entries, to a relative error of {error}"
    if report.states[Leak.FEATURE] is State.NOT_ATTACKED:
        return "not attacked: the update mixes several samples or steps"
    return f"not proved; {FAILED}"


def input_words(report: AuditReport) -> str:
    """What was recovered of the input."""
    found, told = report.input, None if report.score is None else report.score.psnr
    if found.method is Method.NONE:
        return f"not attacked: {found.message}"
    if found.pixels is None:
        return f"not recovered: {found.message}; {FAILED}"
    quality = "" if found.psnr_predicted is None else f"predicted {found.psnr_predicted:.0f} dB, "
    quality += "" if told is None else f"{told:.0f} dB against the truth, "
    said = f"{quality}by {found.method.value}: {found.message}"
    if not report.shows_input:
        return f"not determined, {said}; {FAILED}"
    if report.score is None and found.doubtful:
        return f"perhaps recognisable, as a prediction may be 2 dB too low; {said}"
    return said if found.leaked and found.method is Method.INVERSION else f"recognisable, {said}"


def composition_words(report: AuditReport, names: Sequence[str]) -> str:
    """Which classes are among the labels, and how often each."""
    found = report.composition
    if not found.attacked:
        known = report.states[Leak.COMPOSITION] is State.LEAKED
        return "that of the label above" if known else found.message
    if not found.present:
        return f"no class: {found.message}; {FAILED}"
    said = f"{_classes(found.present, names)}, proved without the truth: {found.message}"
    return said if found.counts is None else f"{said}; counts: {_counted(found, names)}"


def _classes(present: Sequence[int], names: Sequence[str]) -> str:
    listed_ = ", ".join(class_name(i, names) for i in present[:MANY])
    return listed_ + (f" and {len(present) - MANY} more" if len(present) > MANY else "")


def _counted(found: CompositionFinding, names: Sequence[str]) -> str:
    """The estimate of every class that occurs, with its bounds."""
    counts: Counts | None = found.counts
    if counts is None:
        return ""
    some = [i for i, n in enumerate(counts.estimated) if n or i in found.present][:MANY]
    return ", ".join(
        f"{class_name(i, names)} {counts.estimated[i]}"
        + (f" ({counts.low[i]} to {counts.high[i]})" if counts.low else "")
        for i in some
    )


def class_name(index: int, names: Sequence[str]) -> str:
    """The name of a class, or its number."""
    return names[index] if index < len(names) else f"class {index}"


def in_a_line(y: Tensor, names: Sequence[str]) -> str:
    """Short enough for a table: the entries that stand out if they are two at most, else one."""
    telling = int((y - y.min() > WORTH).sum())
    return describe(y, names, telling if telling <= 2 else 1)


def describe(y: Tensor, names: Sequence[str], most: int = SHOWN) -> str:
    """The largest entries of a label by name, and how many others share the rest."""
    values, indices = y.sort(descending=True)
    level = float(values[-1])
    top = [(float(v), int(i)) for v, i in zip(values, indices, strict=True)][:most]
    parts = [f"{class_name(i, names)} {v:.4f}" for v, i in top if v - level > WORTH]
    rest = len(y) - len(parts)
    if not parts:
        return f"all {len(y)} classes alike"
    others = rest > 0 and float(values[len(parts)]) > WORTH
    return ", ".join(parts) + (f", {rest} others" if others else "")


def written(value: float) -> str:
    """A number as people write it: three digits, a power of ten if it is small or large."""
    if not math.isfinite(value):
        return "∞"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}"
    digits, _, power = f"{value:.1e}".partition("e")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{digits}·10{raised}"


def listed(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
