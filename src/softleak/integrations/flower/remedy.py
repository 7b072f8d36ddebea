"""The noise a guard adds: found by the what-if search, drawn anew, remembered between rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from flwr.app import ConfigRecord, Context

from softleak.audit.rates import Leak
from softleak.audit.weakest import Search, Stopped, stronger
from softleak.integrations.flower.findings import ClientAudit
from softleak.share import GradientShare

STATE = "softleak"  # where the client keeps what it found out, between rounds
TRIES = 3  # settings of real noise, each stronger, before an update is refused


@dataclass(frozen=True, eq=False)
class Outcome:
    """The audit of a step, and what became of it."""

    found: ClientAudit
    sent: GradientShare | None = None  # instead of the step, if it was defended
    stopped: Stopped | None = None
    refusal: str = ""


def told(outcome: Outcome, stop: frozenset[Leak]) -> str:
    """What became of an update, in words, for a guard that is to ``stop`` some leaks."""
    if outcome.refusal:
        return f"Refused: {outcome.refusal}."
    if outcome.stopped is not None:
        guesses = outcome.stopped.guesses
        right = "" if guesses is None else (
            f"; class right in {guesses.hits} of {guesses.trials} trials"
        )  # fmt: skip
        size = f"{outcome.stopped.setting:.2g}"
        return (
            f"Sent with noise of standard deviation {size}, behind which this attack did not "
            f"succeed{right}."
        )
    meant, left = (
        ", ".join(sorted(leak.value for leak in some))
        for some in (outcome.found.leaks & stop, outcome.found.leaks - stop)
    )
    warned = f" It gives away what it should not: {meant}." if meant else ""
    open_ = f" It gives away what this guard is not told to stop: {left}." if left else ""
    return f"Sent as it is.{warned}{open_}"


Source = Callable[[Context, int], np.random.Generator]  # of the noise of a client in a round


def fresh(_: Context, __: int) -> np.random.Generator:
    """From 128 bits of the operating system's; any seed that is known could be taken off again."""
    return np.random.default_rng()


def defended(
    found: ClientAudit, search: Search, context: Context, generator: np.random.Generator
) -> Outcome:
    """The step behind noise on which the attacks were seen to fail."""
    stopped = _remembered(context, search) or search.weakest()
    if stopped is None:
        return Outcome(found, refusal="no noise that was tried stops the attack")
    for _ in range(TRIES):
        sent = search.make(stopped.setting, generator)(search.target.share.share)
        if search.stops(sent, stopped.setting):
            _remember(context, stopped)
            return Outcome(found, sent, stopped)
        stopped = stronger(stopped)
    return Outcome(found, refusal="the attack still succeeds behind the strongest noise tried")


def _remember(context: Context, stopped: Stopped) -> None:
    context.state[STATE] = ConfigRecord({"setting": stopped.setting})


def _remembered(context: Context, search: Search) -> Stopped | None:
    """The setting of the round before; how often the class is guessed has to be seen anew."""
    held = context.state.config_records.get(STATE)
    setting = None if held is None else held.get("setting")
    if not isinstance(setting, float):
        return None
    return search.at(setting)
