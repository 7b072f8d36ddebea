"""This module decides what becomes of a client's own update: sent, defended, or kept back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from time import process_time

import numpy as np
from torch import nn

from softleak.auditing import Leak
from softleak.auditing.treatments import TREATMENTS, Treatment
from softleak.auditing.weakest import Make, Search, Stopped, check_search
from softleak.defenses import GaussianNoise
from softleak.errors import OptionError
from softleak.integrations.guarding.auditor import Auditor, Question
from softleak.integrations.guarding.client_update import Update
from softleak.integrations.guarding.guard_outcome import GuardOutcome, named
from softleak.integrations.guarding.own_step import OwnStep
from softleak.integrations.guarding.remedy import defended

LOGGER = logging.getLogger("softleak")


class Action(Enum):
    """What a guard does about an update that gives away what it must not."""

    WARN = "send it as it is, and say so"
    DEFEND = "send it behind the defence that stops the attack and leaves the most of it"
    REFUSE = "do not send it"


@dataclass(frozen=True)
class GuardPolicy:
    """What a guard is told to do.

    Attributes:
        action: what to do about an update that gives away what it must not.
        stop: the leaks that must not happen.
        seeds: the number of trials for each setting of the noise.
        noise: the function that makes a defence of a standard deviation and a source, such as
            ``GaussianNoise`` or ``LaplaceNoise``.
        treatments: what may be done to an update before the noise.
        refuse_unattacked: whether an update is kept back if a leak that must not happen could not
            be attacked, so that nothing is known of it. Otherwise it is sent, and the log says so.
    """

    action: Action
    stop: frozenset[Leak] = frozenset({Leak.INPUT})
    seeds: int = 3
    noise: Make = GaussianNoise
    treatments: Sequence[Treatment] = TREATMENTS
    refuse_unattacked: bool = False

    def __post_init__(self) -> None:
        if not self.stop:
            raise OptionError("expected at least one kind of leak to stop")
        if not self.treatments:
            raise OptionError("expected at least one treatment; Treatment() is noise alone")
        if self.action is Action.DEFEND:
            check_search(self.stop, self.seeds)


class UpdateGuard:
    """This audits a client's own update, and acts on it by a policy.

    Args:
        model: the architecture of the federation; the weights are those received.
        policy: what the guard is told to do.
        question: what is known beforehand, such as the shape of an input.
    """

    def __init__(self, model: nn.Module, policy: GuardPolicy, question: Question) -> None:
        self.model, self.policy, self.question = model, policy, question
        self._auditor = Auditor(model, question)

    def outcome(
        self, step: OwnStep, node: int, last: Stopped | None, generator: np.random.Generator
    ) -> GuardOutcome:
        """Audit a step, and decide what becomes of it.

        Args:
            step: what the client received and is about to send.
            node: the number of the client's node.
            last: the defence of the round before, which is tried first; None in the first round.
            generator: the source of the noise that is really sent.

        Raises:
            SoftleakError: if the step cannot be audited.
        """
        start = process_time()
        found = self._outcome(step, node, last, generator)
        return replace(found, processor=process_time() - start)

    def _outcome(
        self, step: OwnStep, node: int, last: Stopped | None, generator: np.random.Generator
    ) -> GuardOutcome:
        policy, inputs = self.policy, Leak.INPUT in self.policy.stop
        subject = self._auditor.subject(step.received)
        client = step.client or self.question.client
        update = Update(node, step.share, step.lr, step.samples, client=client)
        found = self._auditor.one(subject, update, inputs=inputs)
        leaking, unknown = found.leaks & policy.stop, found.unattacked & policy.stop
        if unknown and policy.refuse_unattacked:
            return GuardOutcome(found, refusal=f"it was not attacked: {named(unknown)}")
        if not leaking or found.report is None or policy.action is Action.WARN:
            return GuardOutcome(found)
        if policy.action is Action.REFUSE:
            return GuardOutcome(found, refusal=f"the update gives away: {named(leaking)}")
        options = replace(self._auditor.question.options(update.scale_known), inputs=inputs)
        search = Search.of(
            subject, step.share, found.report, options, policy.stop, policy.seeds, policy.noise
        )
        return defended(found, search, policy.treatments, last, generator)

    def say(self, number: int, outcome: GuardOutcome, seconds: float) -> None:
        """Log what an update gives away, and what became of it.

        Args:
            number: the number of the round.
            outcome: what the guard found and did.
            seconds: the time that it took.
        """
        did, found = outcome.words(self.policy.stop), outcome.found
        doubtful = found.leaks or found.unattacked & self.policy.stop
        level = logging.WARNING if doubtful else logging.INFO
        LOGGER.log(level, "round %d: %s %s (%.1f s)", number, found.words, did, seconds)
