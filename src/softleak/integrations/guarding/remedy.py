"""The defence that a guard puts before an update, with noise that is drawn anew in every round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from softleak.auditing.least_loss import least_loss, treated
from softleak.auditing.treatments import Treatment
from softleak.auditing.utility import utility
from softleak.auditing.weakest import Search, Stopped, stronger
from softleak.integrations.guarding.guard_outcome import GuardOutcome
from softleak.integrations.guarding.round_findings import ClientAudit

NOISE_TRIES = 3  # the number of settings, each stronger, before an update is refused


def defended(
    found: ClientAudit,
    search: Search,
    treatments: Sequence[Treatment],
    last: Stopped | None,
    generator: np.random.Generator,
) -> GuardOutcome:
    """Return the update behind a defence at which the attacks were seen to fail, or a refusal.

    Args:
        found: what the update gives away without a defence.
        search: the search for the weakest noise that stops the attacks on this update.
        treatments: what may be done to the update before the noise.
        last: the defence of the round before; None to search for one.
        generator: the source of the noise.
    """
    stopped = least_loss(search, treatments) if last is None else _again(search, last)
    if stopped is None:
        return GuardOutcome(found, refusal="no defence that was tried stops the attack")
    tried = treated(search, stopped.treatment)
    for _ in range(NOISE_TRIES):
        sent = tried.send(stopped.setting, generator)
        if tried.stops(sent, stopped.setting):
            return GuardOutcome(found, sent, stopped, utility(search.target.share.share, sent))
        stopped = stronger(stopped)
    return GuardOutcome(found, refusal="the attack still succeeds behind the strongest noise tried")


def _again(search: Search, last: Stopped) -> Stopped:
    """Return the defence of the round before, with its figures measured on this round's update."""
    return treated(search, last.treatment).at(last.setting)
