"""This module writes the verdict: what leaked, what did not succeed, what was not attacked."""

from __future__ import annotations

from softleak.auditing.findings import LabelLeak
from softleak.auditing.rates import Leak, State
from softleak.auditing.reports import Audit, AuditReport
from softleak.auditing.sample_text import leaked_of_samples
from softleak.auditing.text_leak import leaked_of_text, leaked_of_texts
from softleak.auditing.wording import FAILED, listed, written

_LEAKED = {
    Leak.LABEL: "its exact label",
    Leak.CLASS: "its class",
    Leak.FEATURE: "the feature before the last layer",
    Leak.INPUT: "the input itself",
    Leak.COMPOSITION: "which classes are in it",
}
_SHORT = {
    Leak.LABEL: "label",
    Leak.CLASS: "class",
    Leak.FEATURE: "feature",
    Leak.INPUT: "input",
    Leak.COMPOSITION: "class composition",
}

OF_SAMPLES = (Leak.LABEL, Leak.FEATURE, Leak.INPUT)  # told apart for the samples of an update


def headline(report: AuditReport) -> str:
    """Return the verdict of one share in one or two sentences."""
    worth = _worth_saying(report)
    told = OF_SAMPLES if report.input.text is None else OF_SAMPLES[:-1]
    apart = [leak for leak in worth if report.several and leak in told]
    parts = leaked_of_samples(report.samples, apart)
    parts += [_leaked(report, leak) for leak in worth if leak not in apart]
    if not parts and report.label.leak is LabelLeak.AMBIGUOUS:
        said = "This share narrows the label down to a set, and proves no more."
    elif not parts:
        tried = [_SHORT[k] for k, s in report.states.items() if s is State.NO_SUCCESS]
        said = f"Nothing was proved of the {listed(tried)}: {FAILED}." if tried else ""
    elif report.several:
        count = report.composition.samples
        said = f"This update of at least {count} samples or steps gives away {listed(parts)}."
    else:
        said = f"This share gives away {listed(parts)}."
    return f"{said}{_unattacked(report)}".strip()


def _leaked(report: AuditReport, leak: Leak) -> str:
    """Return what leaked, in words. Of a label it says how much."""
    recovery = report.label.recovery
    if leak is Leak.INPUT and report.input.text is not None:
        return leaked_of_text(report.input.text, report.several)
    if leak is not Leak.LABEL or report.label.leak is LabelLeak.UNIQUE:
        return _LEAKED[leak]
    if recovery.readings:
        return "its label if the update is read as it is said below"
    return f"its label to within {written(recovery.error)} (L1)"


def _worth_saying(report: AuditReport) -> list[Leak]:
    """Return what leaked, without what follows from something said already."""
    known = report.label.known or bool(report.samples.proved)
    implied = {Leak.CLASS} if known else set()
    if report.label.class_index is not None or known:
        implied |= {Leak.COMPOSITION}
    return [leak for leak in _LEAKED if leak in report.leaks - implied]


def _unattacked(report: AuditReport) -> str:
    """Return a sentence on what was not attacked, so that nobody knows."""
    names = [_SHORT[leak] for leak in _LEAKED if leak in report.unattacked]
    return f" Not attacked: {listed(names)}." if names else ""


def summary(audit: Audit) -> str:
    """Return the verdict of many shares, and what it rests on if that is unusual."""
    return " ".join([_summary(audit), *_mixed(audit), *_unasked(audit), *audit.cautions])


def _unasked(audit: Audit) -> list[str]:
    """Return a sentence on the inputs of many shares, if nobody asked for them."""
    asked = any(report.input.asked for report in audit.reports)
    return [] if asked or len(audit.reports) < 2 else ["Not attacked: input."]


def _mixed(audit: Audit) -> list[str]:
    """Return a sentence on updates of several samples among many shares."""
    count, total = sum(report.several for report in audit.reports), len(audit.reports)
    if not count or total == 1:
        return []
    verb = "mixes" if count == 1 else "mix"
    proved = sum(bool(report.samples.proved) for report in audit.reports)
    tried = any(report.samples.attacked for report in audit.reports)
    found = (
        f"labels of single samples were proved in {proved}"
        if proved
        else ("no label of one was proved" if tried else "no label of one was attacked")
    )
    return [f"{count} of {total} {verb} several samples or steps: {found}."]


def _summary(audit: Audit) -> str:
    total = len(audit.reports)
    if not total:
        return "No share could be audited."
    if total == 1:
        return headline(audit.reports[0])
    counts = {
        leak: n for leak in _LEAKED if (n := sum(leak in _worth_saying(r) for r in audit.reports))
    }
    if counts.get(Leak.CLASS):  # an exact label says its class
        counts[Leak.CLASS] = audit.count(Leak.CLASS)
    if not counts:
        return f"Of {total} shares none was proved to leak: {_in_vain(audit)}."
    exact = all(r.label.leak is LabelLeak.UNIQUE for r in audit.reports if r.label.known)
    phrases = {**_LEAKED, **_of_texts(audit)}
    if set(counts.values()) == {total}:
        parts = [_of_many(phrases[leak], 2, exact) for leak in counts]
        return f"All {total} shares give away {listed(parts)}."
    said = [
        f"{n} {'gives' if n == 1 else 'give'} away {_of_many(phrases[leak], n, exact)}"
        for leak, n in counts.items()
    ]
    return f"Of {total} shares, {listed(said)}."


def _in_vain(audit: Audit) -> str:
    """Return a phrase that says that attacks did not succeed, or that there were none."""
    tried = any(state is State.NO_SUCCESS for r in audit.reports for state in r.states.values())
    return FAILED if tried else "none was attacked"


def _of_texts(audit: Audit) -> dict[Leak, str]:
    """Return what to call the inputs that leaked if they are texts."""
    found = [r.input.text for r in audit.reports if Leak.INPUT in r.leaks]
    texts = [text for text in found if text is not None]
    return {Leak.INPUT: leaked_of_texts(texts)} if texts else {}


def _of_many(phrase: str, count: int, exact: bool) -> str:
    said = phrase if exact else phrase.replace("exact ", "")
    return said if count == 1 else said.replace("its ", "their ")


def not_attacked(audit: Audit) -> str:
    """Return a sentence on the shares whose input was not attacked, and why; else nothing."""
    reasons = [
        report.input.message
        for report in audit.reports
        if report.input.asked and Leak.INPUT in report.unattacked
    ]
    if not reasons:
        return ""
    total = len(audit.reports)
    which = "" if total == 1 else f" of {len(reasons)} of {total} shares"
    return f" Input{which}: not attacked ({'; '.join(dict.fromkeys(reasons))})."
