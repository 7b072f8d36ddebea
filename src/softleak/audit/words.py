"""The verdict in plain words. What did not succeed is called that, never "safe"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from softleak.audit.findings import Audit, AuditReport, InputFinding, LabelLeak, Method
from softleak.audit.rates import Leak
from softleak.results import Recovery, Status

SHOWN = 3  # entries of a label
WORTH = 5e-4  # smaller entries are not worth a place
FAILED = "this attack did not succeed"


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
    if found.method is Method.MATCHING:
        said.append("The image that was found by matching gradients is a candidate, not a proof.")
    elif found.pixels is not None:
        said.append("A predicted error is evidence that the input leaks, not a proof.")
    return tuple(said)


def headline(report: AuditReport) -> str:
    """The verdict of one share in one sentence."""
    parts = [word for leak, word in _LEAKED.items() if leak in report.leaks]
    if report.label.leak is LabelLeak.UNIQUE:
        parts = [part for part in parts if part != "its class"]
    if not parts:
        if report.label.leak is LabelLeak.AMBIGUOUS:
            return "This share narrows the label down to a set, and proves no more."
        return f"Nothing was proved: {FAILED}."
    return f"This share gives away {_listed(parts)}."


_LEAKED = {
    Leak.LABEL: "its exact label",
    Leak.CLASS: "its class",
    Leak.FEATURE: "the feature before the last layer",
    Leak.INPUT: "the input itself",
}


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
    return f"no label: {recovery.message}; {FAILED}"


def in_brief(
    report: AuditReport, names: Sequence[str], say: Callable[[Tensor, Sequence[str]], str]
) -> str:
    """The label if it was proved, as ``say`` has it; else the class, or why there is none."""
    recovery = report.label.recovery
    if report.label.leak is LabelLeak.UNIQUE and recovery.label is not None:
        return say(recovery.label, names)
    if report.label.class_index is not None:
        return class_name(report.label.class_index, names)
    return recovery.status.value


def input_words(found: InputFinding) -> str:
    """What was recovered of the input."""
    if found.pixels is None:
        return f"not recovered: {found.message}; {FAILED}"
    if found.psnr_predicted is None:
        return f"a candidate, by {found.method.value}: {found.message}"
    quality = f"predicted {found.psnr_predicted:.0f} dB"
    if not found.leaked:
        return f"not determined ({quality}): {found.message}; {FAILED}"
    return f"{quality}, by {found.method.value}: {found.message}"


def summary(audit: Audit) -> str:
    """The verdict of many shares in one sentence."""
    total = len(audit.reports)
    if not total:
        return "No share could be audited."
    if total == 1:
        return headline(audit.reports[0])
    if not any(report.leaks for report in audit.reports):
        return f"Of {total} shares none was proved to leak: {FAILED}."
    counts = {leak: audit.count(leak) for leak in _LEAKED if audit.count(leak)}
    if not any(Leak.CLASS in r.leaks and Leak.LABEL not in r.leaks for r in audit.reports):
        counts.pop(Leak.CLASS, None)  # an exact label says its class
    if set(counts.values()) == {total}:
        return f"All {total} shares give away {_listed([_of_many(leak, 2) for leak in counts])}."
    said = [
        f"{n} {'gives' if n == 1 else 'give'} away {_of_many(leak, n)}"
        for leak, n in counts.items()
    ]
    return f"Of {total} shares, {_listed(said)}."


def _of_many(leak: Leak, count: int) -> str:
    return _LEAKED[leak] if count == 1 else _LEAKED[leak].replace("its ", "their ")


def not_attacked(audit: Audit) -> str:
    """Of how many shares the input was not attacked, and why; nothing if there are none."""
    reasons = [r.input.message for r in audit.reports if Leak.INPUT in r.unattacked]
    if not reasons:
        return ""
    total = len(audit.reports)
    which = "" if total == 1 else f" of {len(reasons)} of {total} shares"
    return f" Input{which}: not attacked ({'; '.join(dict.fromkeys(reasons))})."


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


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
