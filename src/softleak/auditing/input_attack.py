"""The input behind a share: computed exactly where the model allows it, else searched for.

This is the one place where the method is chosen. ``INPUT_ATTACKS`` lists the attacks, the strongest
first; a new one is a function in a file of its own and a line here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from softleak.auditing.attack_outcome import Attempt, Outcome
from softleak.auditing.audit_options import Options
from softleak.auditing.embedded_input import invert_embedded
from softleak.auditing.findings import InputFinding, Method
from softleak.auditing.inverted import invert_input
from softleak.auditing.solved import search_input
from softleak.errors import in_a_line
from softleak.factors import factor
from softleak.input_spec import InputSpec
from softleak.labels.decay import without_decay
from softleak.results import Recovery
from softleak.share import GradientShare
from softleak.subject import Subject

FAILED_TO_RUN = "could not be carried out"
# An attack answers None if it does not apply and nobody needs to hear of it.
InputAttack = Callable[[Subject, GradientShare, Recovery, Options], InputFinding | None]
INPUT_ATTACKS: list[tuple[str, InputAttack]] = [
    ("reading embeddings", invert_embedded),
    ("inversion", invert_input),
    ("matching", search_input),
]


def recover_input(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> InputFinding:
    """Return the input by the strongest attack that succeeds, or the best that was found.

    Whatever goes wrong in an attack, in the model's own code or in torch, ends that attack with a
    reason and nothing else. Weight decay is undone first, in every way it may have been applied.
    """
    start = time.perf_counter()
    attacks = INPUT_ATTACKS if recovery.feature is not None else INPUT_ATTACKS[:1]
    if isinstance(subject.input_shape, InputSpec):
        attacks = INPUT_ATTACKS[:1]  # words are not real numbers
    factors = factor(subject.head, [share])
    faint = factors.sums[0] if bool(factors.rank_one) else None  # most products have no decay
    shares = [one.share for one in without_decay(subject, share, faint=faint)] or [share]
    best: InputFinding | None = None
    ended: list[Attempt] = []
    for name, attack in attacks:
        tries = [(_attempted(attack, name, subject, one, recovery, options), one) for one in shares]
        found, share = max(tries, key=lambda pair: _promise(pair[0]))
        ended.append(_ending(name, found))
        if found is not None:
            ended += found.attempts
            best = found if best is None else _better(best, found)
            shares = [share]
        if best is not None and best.leaked:
            break
    if best is None:
        best = InputFinding(Method.NONE, "no feature was recovered to start from")
    noted = {attempt.attack for attempt in ended}
    left = [name for name, _ in INPUT_ATTACKS if name not in noted]
    why = _left_out(subject, recovery, best)
    kept_back = Outcome.NOT_CARRIED_OUT if best.leaked else Outcome.NOT_APPLICABLE
    ended += [Attempt(name, kept_back, why) for name in left]
    return replace(best, seconds=time.perf_counter() - start, attempts=tuple(ended))


def _ending(name: str, found: InputFinding | None) -> Attempt:
    """Return how one attack ended, for the catalogue."""
    if found is None:
        return Attempt(name, Outcome.NOT_APPLICABLE, "the model or the update offers nothing to it")
    if found.method == Method.NONE:
        failed = FAILED_TO_RUN in found.message
        outcome = Outcome.NOT_CARRIED_OUT if failed else Outcome.NOT_APPLICABLE
        return Attempt(name, outcome, found.message)
    return Attempt(name, Outcome.of(found.leaked), found.message)


def _left_out(subject: Subject, recovery: Recovery, best: InputFinding) -> str:
    """Return why the attacks after the last one that was tried were not needed or do not apply."""
    if best.leaked:
        return "a stronger attack had recovered the input already"
    if isinstance(subject.input_shape, InputSpec):
        return "words are not real numbers"
    return "no feature was recovered to start from" if recovery.feature is None else ""


def _promise(found: InputFinding | None) -> tuple[bool, float]:
    return (False, float("-inf")) if found is None else (found.leaked, found.quality)


def _attempted(
    attack: InputAttack,
    name: str,
    subject: Subject,
    share: GradientShare,
    recovery: Recovery,
    options: Options,
) -> InputFinding | None:
    """Return the outcome of an attack, or in one line why it could not be carried out."""
    try:
        return attack(subject, share, recovery, options)
    except Exception as error:  # the model's own code and torch may raise anything
        return InputFinding(Method.NONE, f"{name} {FAILED_TO_RUN}: {in_a_line(error)}")


def _better(best: InputFinding, found: InputFinding) -> InputFinding:
    """Return the attempt whose image should be better, with a word on the other."""
    why = best.message.partition(";")[0]
    if found.pixels is None:
        return replace(best, message=f"{why}; {found.message}")
    if found.quality >= best.quality:
        return replace(found, message=f"{why}, so {found.message}")
    return replace(best, message=f"{why}; {found.method.value} was tried and is no better")
