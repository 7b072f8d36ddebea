"""This module says what to do about an audit's findings, in sentences that follow from them."""

from __future__ import annotations

from collections.abc import Iterator

from softleak.auditing.rates import Rate, Response, WhatIf
from softleak.auditing.reports import Audit
from softleak.auditing.wording import listed, written
from softleak.vocabulary import Leak

TRIED_LEAKS = (Leak.LABEL, Leak.CLASS, Leak.INPUT)  # those that defences are tried against

UNMODELLED = ("Pruning", "int8")  # label recovery takes what these do for noise


def advice(audit: Audit) -> tuple[str, ...]:
    """Return what to do: the main thing first, then steps.

    Args:
        audit: what was found, and which defences were tried.
    """
    return tuple(_advice(audit))


def _advice(audit: Audit) -> Iterator[str]:
    leaked = [leak for leak in Leak if audit.count(leak)]
    untried = [leak for leak in Leak if any(leak in r.unattacked for r in audit.reports)]
    one = len(audit.reports) == 1
    if not audit.reports:
        yield "Nothing was audited: mend the files that were refused, and run the audit again."
        return
    if leaked:
        yield f"Do not send {'this update as it is' if one else 'such updates as they are'}."
        yield from _batches(audit)
        yield from _remedies(audit, frozenset(leaked))
        yield "Audit the defended update again before you rely on the defence."
    elif untried:
        names = listed([leak.value for leak in untried])
        yield f"Do not conclude that nothing leaks: the {names} was not attacked everywhere."
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
    aimed = leaked & set(TRIED_LEAKS)
    if audit.what_if is None and any(report.telling for report in audit.reports):
        yield "Find out which defence ends these attacks: run the audit again with --what-if."
    if audit.what_if is not None and aimed:
        yield defence_words(audit.what_if, aimed)
    if not aimed:
        yield "Classes of many samples are hidden by noise or secure aggregation, not by batching."


def defence_words(tried: WhatIf, leaks: frozenset[Leak]) -> str:
    """Return which defences ended every one of some attacks, and how sure that is.

    Args:
        tried: the defences and how often attacks succeeded against them.
        leaks: the kinds of leak that are to end.
    """
    names = listed([leak.value for leak in TRIED_LEAKS if leak in leaks])
    enough = [r for r in tried.responses if all(leak in r.stops for leak in leaks)]
    if not enough:
        return f"No defence that was tried ended every attack on {names}; combine them."
    words = [_setting(response, leaks) for response in enough]
    bound = max(_last(r, leak).interval[1] for r in enough for leak in leaks)
    return (
        f"Of the defences tried, these ended every attack on {names}: {'; '.join(words)}. With so "
        f"few trials a success rate of up to {100 * bound:.0f} % cannot be ruled out (95 %)."
        f"{_unclaimed(enough, leaks)}{_unmodelled(enough)}"
    )


def _unclaimed(responses: list[Response], leaks: frozenset[Leak]) -> str:
    """Return a caution on defences behind which labels are right, though no attack claims them."""
    names = [response.name for response in responses if response.unclaimed]
    if not names or Leak.LABEL not in leaks:
        return ""
    return f" Behind {listed(names)} some labels were still right, though not claimed."


def _unmodelled(responses: list[Response]) -> str:
    """Return a caution on defences that no attack here was made for."""
    names = [response.name for response in responses if response.name in UNMODELLED]
    if not names:
        return ""
    return f" No attack here was made for {listed(names)}; one that is may succeed."


def _setting(response: Response, leaks: frozenset[Leak]) -> str:
    """Return a defence with the setting from which on every one of the attacks failed."""
    if not response.unit:
        return response.name
    ends = [response.stops[leak] for leak in leaks]
    grows = response.points[-1].setting >= response.points[0].setting
    end = max(ends) if grows else min(ends)
    said = f"{written(end)} or {'more' if grows else 'less'}"
    of_what, _, given = response.unit.partition(" (")  # what the number is, and under what terms
    if given:
        return f"{response.name}, {of_what} of {said} ({given}"
    return f"{response.name} ({response.unit} {said})"


def _last(response: Response, leak: Leak) -> Rate:
    return [point.rates[leak] for point in response.points if leak in point.rates][-1]
