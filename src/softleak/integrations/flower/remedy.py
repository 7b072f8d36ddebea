"""The noise that a guard adds: the weakest that stops the attack, drawn anew in every round."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from flwr.app import ConfigRecord, Context

from softleak.auditing.weakest import Search, Stopped, stronger
from softleak.integrations.flower.guard_outcome import GuardOutcome
from softleak.integrations.flower.round_findings import ClientAudit

CONTEXT_KEY = "softleak"  # the record of the client's context that lasts between rounds
NOISE_TRIES = 3  # the number of settings, each stronger, before an update is refused
Source = Callable[[Context, int], np.random.Generator]  # of the noise of a client in a round


def fresh(_: Context, __: int) -> np.random.Generator:
    """Return a source seeded by the operating system.

    Whoever knew the seed of the noise could subtract it again.
    """
    return np.random.default_rng()


def defended(
    found: ClientAudit, search: Search, context: Context, generator: np.random.Generator
) -> GuardOutcome:
    """Return the update with noise behind which the attacks were seen to fail, or a refusal.

    Args:
        found: what the update gives away without noise.
        search: the search for the weakest noise that stops the attacks on this update.
        context: the client's context, which remembers the noise of the round before.
        generator: the source of the noise.
    """
    stopped = _remembered(context, search) or search.weakest()
    if stopped is None:
        return GuardOutcome(found, refusal="no noise that was tried stops the attack")
    for _ in range(NOISE_TRIES):
        sent = search.make(stopped.setting, generator)(search.target.share.share)
        if search.stops(sent, stopped.setting):
            _remember(context, stopped)
            return GuardOutcome(found, sent, stopped)
        stopped = stronger(stopped)
    return GuardOutcome(found, refusal="the attack still succeeds behind the strongest noise tried")


def _remember(context: Context, stopped: Stopped) -> None:
    """Keep the setting of the noise for the next round."""
    context.state[CONTEXT_KEY] = ConfigRecord({"setting": stopped.setting})


def _remembered(context: Context, search: Search) -> Stopped | None:
    """Return the setting of the round before, or None in the first round.

    How often the class is guessed behind it is measured again, on this round's update.
    """
    held = context.state.config_records.get(CONTEXT_KEY)
    setting = None if held is None else held.get("setting")
    if not isinstance(setting, float):
        return None
    return search.at(setting)
