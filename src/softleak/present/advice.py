"""Say who attacks in an audit and what they know, derived from ``Knowledge``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from softleak.audit.leaks import Leak, Severity
from softleak.audit.report import Audit, AuditReport, Outcome
from softleak.audit.sweeps import Response, WhatIf
from softleak.core.fit import NOT_FITTED, Bearing, Fit, Topic
from softleak.core.knowledge import Knowledge
from softleak.core.results import Recovery
from softleak.core.vocabulary import State, written
from softleak.present.catalogue import every_attack, tally
from softleak.present.fit import loss_known, remedies
from softleak.present.words import listed


def severity_of_share(report: AuditReport) -> Severity:
    """Return the worst that was found in one share."""
    found = [leak.severity for leak in report.leaks]
    if found:
        return worst(found)
    if report.label.proved == "AMBIGUOUS":
        return Severity.LOW
    attacked = not report.unattacked and report.fit.holds
    return Severity.NONE_FOUND if attacked else Severity.NOT_KNOWN


def severity_of_audit(audit: Audit) -> Severity:
    """Return the worst that was found in any share. Files that were refused are not known."""
    found = [severity_of_share(report) for report in audit.reports]
    return worst([*found, *([Severity.NOT_KNOWN] if audit.refused or not found else [])])


def worst(severities: Iterable[Severity]) -> Severity:
    """Return the worst of some severities."""
    return max(severities, key=lambda severity: severity.rank)


# No attack is made for what these do: it is taken for noise, or for a layer that is frozen.
UNMODELLED = ("Pruning", "int8", "NVFlare", "Freezing")


def advice(audit: Audit) -> Iterator[str]:
    """Yield what to do: the main thing first, then steps."""
    leaked = [leak for leak in Leak if audit.count(leak)]
    untried = [leak for leak in Leak if any(leak in r.unattacked for r in audit.reports)]
    one = len(audit.reports) == 1
    if not audit.reports:
        yield "Nothing was audited: mend the files that were refused, and run the audit again."
        return
    if leaked:
        yield f"Do not send {'this update as it is' if one else 'such updates as they are'}."
        yield from remedies(report.fit for report in audit.reports)
        yield from _batches(audit)
        yield from _remedies(audit, frozenset(leaked))
        yield "Audit the defended update again before you rely on the defence."
    elif untried:
        names = listed([leak.value for leak in untried])
        yield f"Do not conclude that nothing leaks: the {names} was not attacked everywhere."
        yield from remedies(report.fit for report in audit.reports)
    else:
        yield "Keep auditing: no attack of this audit succeeded, which is evidence and no proof."
    if audit.refused:
        yield f"Mend the files that were refused ({len(audit.refused)}); nothing is known of them."
    named = leaked or [leak for leak in Leak if leak not in untried]
    options = " ".join(f"--fail-on {leak.value}" for leak in named)
    if options:
        yield f"Let the pipeline stop such an update: softleak audit … {options}"


def _batches(audit: Audit) -> Iterator[str]:
    """Yield a warning about batches whose samples were told apart."""
    found = [report.samples for report in audit.reports if report.samples.proved]
    if not found:
        return
    samples, labels = sum(one.size for one in found), sum(len(one.proved) for one in found)
    inputs = sum(one.proved_inputs for one in found)
    more = f" and the inputs of {inputs}" if inputs else ""
    yield (
        f"Do not rely on batching: of {samples} samples in {len(found)} mixed "
        f"{'update' if len(found) == 1 else 'updates'} the labels of {labels}{more} were proved."
    )


def _remedies(audit: Audit, leaked: frozenset[Leak]) -> Iterator[str]:
    aimed = frozenset(leak for leak in leaked if leak.defended)
    if audit.what_if is None and any(report.telling for report in audit.reports):
        yield "Find out which defence ends these attacks: run the audit again with --what-if."
    if audit.what_if is not None and aimed:
        yield defence_words(audit.what_if, aimed)
    if not aimed:
        yield "Classes of many samples are hidden by noise or secure aggregation, not by batching."


def defence_words(tried: WhatIf, leaks: frozenset[Leak]) -> str:
    """Return which defences ended every one of some attacks, and how sure that is."""
    names = listed([leak.value for leak in Leak if leak.defended and leak in leaks])
    ended = [r for r in tried.responses if all(leak in r.stops for leak in leaks)]
    enough = [r for r in ended if not r.name.startswith(UNMODELLED)]
    doubtful = [r.name for r in ended if r not in enough]
    said = f" The attacks failed behind {listed(doubtful)} too, but none was made for that, so it"
    caution = f"{said} is not recommended." if doubtful else ""
    if not enough:
        return f"No defence that was tried ended every attack on {names}; combine them.{caution}"
    words = [_setting(response, leaks) for response in enough]
    last = [[p.rates[k] for p in r.points if k in p.rates][-1] for r in enough for k in leaks]
    bound = max(rate.interval[1] for rate in last)
    said = (
        f"Of the defences tried, these ended every attack on {names}: {'; '.join(words)}. With so "
        f"few trials a success rate of up to {100 * bound:.0f} % cannot be ruled out (95 %)."
    )
    unclaimed = [r.name for r in enough if r.unclaimed and Leak.LABEL in leaks]
    if unclaimed:
        said += f" Behind {listed(unclaimed)} some labels were still right, though not claimed."
    return said + caution


def _setting(response: Response, leaks: frozenset[Leak]) -> str:
    """Return a defence with the setting from which on every one of the attacks failed."""
    if not response.unit:
        return response.name
    ends = [response.stops[leak] for leak in leaks]
    grows = response.points[-1].setting >= response.points[0].setting
    end = max(ends) if grows else min(ends)
    said = f"{written(end)} or {'more' if grows else 'less'}"
    if response.terms:
        return f"{response.name}, {response.unit} of {said} ({response.terms})"
    return f"{response.name} ({response.unit} {said})"


def residual_risk(audit: Audit) -> Iterator[str]:
    """Yield what remains at risk: what leaks, what was not attacked, what nobody tried."""
    total = len(audit.reports)
    for leak in Leak:
        count, missed = audit.count(leak), audit.untried(leak)
        broken = audit.count(leak, State.CONTRADICTED)
        failed = total - count - missed
        missed -= broken
        parts = [f"recovered from {count} of {total} updates"] if count else []
        parts += [f"attacked without success in {failed}"] if failed else []
        parts += [f"not attacked in {missed}, of which nothing is known"] if missed else []
        void = f"not known in {broken}, since the update contradicts what was stated"
        parts += [void] if broken else []
        yield f"{leak.value.capitalize()}: {listed(parts) or 'no update was audited'}."
    if audit.refused:
        yield f"{len(audit.refused)} files could not be audited; nothing is known of them."
    aimed = frozenset(leak for leak in Leak if leak.defended and audit.count(leak))
    if audit.what_if is not None and aimed:
        yield defence_words(audit.what_if, aimed)
    elif aimed:
        yield "No defence was tried, so the risk behind a defence is not known."
    ran = ((a.name, tally(a, audit.reports)[Outcome.NOT_CARRIED_OUT]) for a in every_attack())
    idle = [name for name, count in ran if count == total]
    if idle and total:
        yield f"Attacks of the catalogue that were not carried out: {listed(idle)}."
    yield (
        "Attacks that are not in the catalogue, attackers with data of their own or over many "
        "rounds, and membership inference were not part of this audit."
    )


ATTACKER = (
    "The attacker reads what a client sends: a server that follows the protocol, or whoever sees "
    "its traffic.",
    "The attacker has the model with the weights before the step, and the update as it was sent.",
    "The attacker does not change the training and has no data of the client.",
)


def attacker_knowledge(
    knowledge: Knowledge, recovery: Recovery | None = None
) -> tuple[tuple[str, str], ...]:
    """Return what the attacker knows of an update, and what its fit contradicts of that."""
    family = knowledge.family
    fit = NOT_FITTED if recovery is None else recovery.fit
    noise = f"standard deviation {knowledge.noise:g}, as declared" if knowledge.noise else (
        "not declared; it is measured in the update"
    )  # fmt: skip
    return (
        ("Model and weights", f"known{_unless(fit, Topic.WEIGHTS)}"),
        ("Loss", "taken for softmax cross-entropy" if recovery is None else loss_known(recovery)),
        ("Form of the label", "not assumed where other layers tell it, else one-hot, smoothed or a "
         "mix of two classes" if family is None else f"{family}"),
        ("Scale of the update", f"{_scale(knowledge)}{_unless(fit, Topic.SCALE)}"),
        ("Noise on the update", f"{noise}{_unless(fit, Topic.NOISE)}"),
        ("Number of samples", str(knowledge.samples or "not stated")),
        ("Local training", str(knowledge.client or "not stated")),
        ("Layers used", "the last layer alone" if knowledge.head_only else "all that were sent"),
        ("Other data", "none"),
    )  # fmt: skip


def _unless(fit: Fit, topic: Topic) -> str:
    """Return a remark on what was stated, if the update contradicts it."""
    broken = fit[topic].bearing is Bearing.CONTRADICTED
    return f"; the update contradicts this ({fit[topic].explanation.value})" if broken else ""


def _scale(knowledge: Knowledge) -> str:
    """Return what is known of the factor on an update."""
    if knowledge.scale is not None:
        unknown = "unknown; any positive factor is considered"
        return unknown if knowledge.scale_unknown else "known"
    if knowledge.lr is not None:
        return f"learning rate {knowledge.lr:g}, as stated; other factors are considered as well"
    if knowledge.client is not None:
        return "as the local training stated below leaves it"
    others = "factors" if knowledge.is_gradient else "factors and signs"
    return f"not stated; other {others} are considered"


def knowledge_of(audit: Audit) -> tuple[tuple[str, str], ...]:
    """Return what the attacker knew in an audit; where shares differ, every answer is given."""
    found: dict[str, list[str]] = {}
    for report in audit.reports:
        for question, answer in attacker_knowledge(report.knowledge, report.label.recovery):
            answers = found.setdefault(question, [])
            if answer not in answers:
                answers.append(answer)
    return tuple((question, "; or ".join(answers)) for question, answers in found.items())


def assumptions_of(audit: Audit) -> tuple[str, ...]:
    """Return every assumption that some verdict of an audit rests on, each once."""
    return tuple(dict.fromkeys(a for report in audit.reports for a in report.assumptions))
