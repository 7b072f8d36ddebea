"""This module says in words which risk is left, as far as an audit can tell."""

from __future__ import annotations

from collections.abc import Iterator

from softleak.auditing.advice import TRIED_LEAKS, defence_words
from softleak.auditing.attack_outcome import Outcome
from softleak.auditing.catalogue import every_attack, tally
from softleak.auditing.reports import Audit
from softleak.auditing.wording import listed
from softleak.vocabulary import Leak, State


def residual_risk(audit: Audit) -> tuple[str, ...]:
    """Return what remains at risk: what leaks, what was not attacked, what nobody tried.

    Args:
        audit: what was found.
    """
    return tuple(_sentences(audit))


def _sentences(audit: Audit) -> Iterator[str]:
    total = len(audit.reports)
    for leak in Leak:
        count, missed = audit.count(leak), audit.count(leak, State.NOT_ATTACKED)
        failed = total - count - missed
        parts = [f"recovered from {count} of {total} updates"] if count else []
        parts += [f"attacked without success in {failed}"] if failed else []
        parts += [f"not attacked in {missed}, of which nothing is known"] if missed else []
        yield f"{leak.value.capitalize()}: {listed(parts) or 'no update was audited'}."
    if audit.refused:
        yield f"{len(audit.refused)} files could not be audited; nothing is known of them."
    aimed = frozenset(leak for leak in TRIED_LEAKS if audit.count(leak))
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
