"""Decide what becomes of a client's own update: sent, defended, or kept back."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from time import process_time

import numpy as np
import torch
from torch import Tensor, nn

from softleak.audit.leaks import Leak
from softleak.audit.sweeps import PLAIN, TREATMENTS, Treatment, Utility, utility
from softleak.audit.weakest import (
    GRID_FACTOR,
    Make,
    Search,
    Stopped,
    check_search,
    least_loss,
    treated,
)
from softleak.bounds.privacy import gaussian_success, least_multiplier
from softleak.core.errors import OptionError
from softleak.core.loss import CrossEntropy
from softleak.core.share import GradientShare
from softleak.defenses.defense import Clip, GaussianNoise
from softleak.guard.auditor import Auditor, ClientAudit, ClientUpdate, Question
from softleak.present.words import contradiction, treatment_words


@dataclass(frozen=True)
class Promise:
    """What no attack on a client's updates may do, and the public noise that keeps it from that.

    Clip and noise are stated before any update is seen, and the noise is drawn once: nothing about
    them, and no number that is sent beside an update, depends on the update.
    """

    clip: float  # the L2 norm that a step of all weights together is shortened to
    chance: float  # how often a guess of the secret is right: 1 in so many classes, for a label
    target: float  # how often an attack may be right
    rounds: int = 1  # how many updates of the same data are sent

    def __post_init__(self) -> None:
        Clip(self.clip)
        least_multiplier(self.chance, self.target, self.rounds)

    @cached_property
    def noise(self) -> float:
        """The standard deviation of the noise on every weight."""
        return self.clip * least_multiplier(self.chance, self.target, self.rounds)

    @property
    def success(self) -> float:
        """Return how often an attack on all updates is right at most."""
        return gaussian_success(self.chance, self.clip * self.rounds**0.5 / self.noise)

    def sent(self, step: GradientShare) -> GradientShare:
        """Return a step of weights as it is sent."""
        short = Clip(self.clip)(step.map(lambda _, t: t.double()))
        return short.map(lambda _, t: t + self.noise * secret_normal(t))


def secret_normal(like: Tensor) -> Tensor:
    """Return normal numbers from the system's source of secrets, which nobody can predict."""
    from scipy.special import ndtri  # slow to import

    drawn = np.frombuffer(os.urandom(8 * like.numel()), np.uint64) >> np.uint64(11)
    return torch.from_numpy(ndtri((drawn + 0.5) / 2.0**53)).view(like.shape)


@dataclass(frozen=True, eq=False)
class GuardOutcome:
    """The audit of an update, and what became of the update."""

    found: ClientAudit  # what the update gives away without a defence
    sent: GradientShare | None = None  # what is sent instead, if anything else is
    stopped: Stopped | None = None  # the defence that was chosen
    left: Utility | None = None  # what is left of the update in what is sent
    refusal: str = ""  # why it is not sent; empty if it is
    processor: float = 0.0  # the processor time in seconds that the guard took
    promise: Promise | None = None  # what was proved of it, if anything was

    def words(self, stop: frozenset[Leak]) -> str:
        """Return what became of the update, in sentences."""
        if self.refusal:
            return f"Refused: {self.refusal}."
        if self.promise is not None:
            return (
                f"Sent with a norm of at most {self.promise.clip:g} behind noise of standard "
                f"deviation {self.promise.noise:.3g}: proved hidden is whatever a guess is right "
                f"about with {self.promise.chance:.1%} or less, for no attack on "
                f"{self.promise.rounds} such updates is right with more than "
                f"{self.promise.success:.1%}."
            )
        if self.stopped is not None:
            guesses = self.stopped.guesses
            right = "" if guesses is None else (
                f"; class right in {guesses.hits} of {guesses.trials} trials"
            )  # fmt: skip
            left = "" if self.left is None else f"; cosine to the update {self.left.cosine:.2f}"
            return (
                f"Sent with noise of standard deviation {self.stopped.setting:.2g}"
                f"{treatment_words(self.stopped.treatment)}, behind which this attack did not "
                f"succeed{right}{left}. No bound covers this noise, as it was chosen by looking "
                "at the update."
            )
        found, unknown = self.found, self.found.unattacked & stop
        broken = " The update contradicts what was stated." if found.contradicted else ""
        said = {
            "It gives away what it should not": found.leaks & stop,
            "This guard is told to stop what was not attacked": unknown,
            "It gives away what this guard is not told to stop": found.leaks - stop,
        }
        told = [f"{words}: {named(leaks)}." for words, leaks in said.items() if leaks]
        return " ".join([f"Sent as it is.{broken}", *told])

    def metrics(self, stop: frozenset[Leak], seconds: float) -> dict[str, float]:
        """Return the outcome as numbers for a framework's metrics.

        Every reply has the same names, as strategies insist; inputs have none if they are not
        stopped. Of an update that is proved hidden they tell nothing.
        """
        if self.promise is not None:
            return {"guard-noise": self.promise.noise, "guard-proved": self.promise.success}
        never = {Leak.INPUT} - stop
        leaks, unattacked = self.found.leaks, self.found.unattacked
        done = PLAIN if self.stopped is None else self.stopped.treatment
        return {
            **{f"guard-{leak.value}": float(leak in leaks) for leak in Leak if leak not in never},
            **{f"guard-{leak.value}-not-attacked": float(leak in unattacked) for leak in Leak},
            "guard-contradicted": float(self.found.contradicted),
            "guard-defended": float(self.stopped is not None),
            "guard-noise": 0.0 if self.stopped is None else self.stopped.setting,
            "guard-kept": done.kept,
            "guard-length": done.length,
            "guard-cosine": 1.0 if self.left is None else self.left.cosine,
            "guard-class-bound": 1.0 if self.stopped is None else self.stopped.class_bound,
            "guard-seconds": seconds,
            "guard-processor-seconds": self.processor,
        }


def named(leaks: frozenset[Leak]) -> str:
    """Return the names of some kinds of leak, in order."""
    return ", ".join(sorted(leak.value for leak in leaks))


NOISE_TRIES = 3  # the number of settings, each stronger, before an update is refused


def defended(
    found: ClientAudit, search: Search, treatments: Sequence[Treatment], last: Stopped | None,
    generator: np.random.Generator,
) -> GuardOutcome:  # fmt: skip
    """Return the update behind a defence at which the attacks were seen to fail, or a refusal.

    The defence of the round before is tried first, with figures measured on this round's update.
    """
    if last is None:
        stopped = least_loss(search, treatments)
    else:
        stopped = treated(search, last.treatment).at(last.setting)
    if stopped is None:
        return GuardOutcome(found, refusal="no defence that was tried stops the attack")
    tried = treated(search, stopped.treatment)
    for _ in range(NOISE_TRIES):
        sent = tried.send(stopped.setting, generator)
        if tried.stops(sent, stopped.setting):
            return GuardOutcome(found, sent, stopped, utility(search.target.share.share, sent))
        stopped = replace(stopped, setting=stopped.setting * GRID_FACTOR)  # no trial was made of it
    return GuardOutcome(found, refusal="the attack still succeeds behind the strongest noise tried")


LOGGER = logging.getLogger("softleak")


class Action(Enum):
    """What a guard does about an update that gives away what it must not."""

    WARN = "send it as it is, and say so"
    DEFEND = "send it behind the defence that stops the attack and leaves the most of it"
    REFUSE = "do not send it"
    PROVE = "send every update behind public noise, of which a bound on all attacks is proved"


@dataclass(frozen=True)
class GuardPolicy:
    """What a guard is told to do about an update that gives away what it must not."""

    action: Action
    stop: frozenset[Leak] = frozenset({Leak.INPUT})  # the leaks that must not happen
    seeds: int = 3  # the number of trials for each setting of the noise
    noise: Make = GaussianNoise  # makes a defence of a standard deviation and a source
    treatments: Sequence[Treatment] = TREATMENTS  # what may be done before the noise
    # Whether an update is kept back if a leak that must not happen could not be attacked, so that
    # nothing is known of it. Otherwise it is sent, and the log says so. An update that contradicts
    # what was stated is kept back whatever this says.
    refuse_unattacked: bool = False
    promise: Promise | None = None  # what is proved of every update

    def __post_init__(self) -> None:
        if not self.stop:
            raise OptionError("expected at least one kind of leak to stop")
        if not self.treatments:
            raise OptionError("expected at least one treatment; Treatment() is noise alone")
        if (self.action is Action.PROVE) != (self.promise is not None):
            raise OptionError("expected a promise with the action that proves, and with no other")
        if self.action is Action.DEFEND:
            check_search(self.stop, self.seeds)


class UpdateGuard:
    """Audit a client's own update of an architecture's weights, and act on it by a policy."""

    def __init__(self, model: nn.Module, policy: GuardPolicy, question: Question) -> None:
        self.model, self.policy, self.question = model, policy, question
        self._auditor = Auditor(model, question)

    def outcome(
        self, update: ClientUpdate, last: Stopped | None, generator: np.random.Generator,
        proved: int = 0,
    ) -> GuardOutcome:  # fmt: skip
        """Audit an update, and decide what becomes of it; the generator is for the noise.

        A guard that proves audits nothing, so that nothing it does depends on what it would find.
        ``proved`` is how many updates it let out before.
        """
        start = process_time()
        if self.policy.promise is None:
            found = self._outcome(update, last, generator)
        else:
            found = self._proved(update, self.policy.promise, proved)
        return replace(found, processor=process_time() - start)

    def _outcome(
        self, update: ClientUpdate, last: Stopped | None, generator: np.random.Generator
    ) -> GuardOutcome:
        policy, inputs = self.policy, Leak.INPUT in self.policy.stop
        subject = self._auditor.subject(update.received)
        update = self._auditor.ready(subject, update)
        found = self._auditor.one(subject, update, inputs=inputs)
        leaking, unknown = found.leaks & policy.stop, found.unattacked & policy.stop
        report, share, acts = found.report, update.gradient, policy.action is not Action.WARN
        if leaking and policy.action is Action.REFUSE:
            return GuardOutcome(found, refusal=f"the update gives away: {named(leaking)}")
        if report is not None and found.contradicted and acts:
            why = f"the update contradicts what was stated: {contradiction(report)}"
            return GuardOutcome(found, refusal=why)
        if unknown and policy.refuse_unattacked:
            return GuardOutcome(found, refusal=f"it was not attacked: {named(unknown)}")
        if not leaking or report is None or share is None or not acts:
            return GuardOutcome(found)
        if not isinstance(report.label.recovery.loss, CrossEntropy):
            return GuardOutcome(found, refusal="no attack behind a defence knows its loss")
        options = replace(self._auditor.question.options(update.scale_known), inputs=inputs)
        search = Search.of(subject, share, report, options, policy.stop, policy.seeds, policy.noise)
        return defended(found, search, policy.treatments, last, generator)

    def _proved(self, update: ClientUpdate, promise: Promise, before: int) -> GuardOutcome:
        update = self._auditor.ready(self._auditor.subject(update.received), update)
        found = ClientAudit(update.node, reason="its bound holds whatever it gives away")
        if before >= promise.rounds or update.gradient is None:
            return GuardOutcome(found, refusal=f"{promise.rounds} updates were promised, and sent")
        sent = promise.sent(update.gradient.scaled(update.size)).scaled(1 / update.size)
        return GuardOutcome(found, sent, promise=promise)

    def say(self, number: int, outcome: GuardOutcome, seconds: float) -> None:
        """Log what an update gives away, and what became of it."""
        did, found = outcome.words(self.policy.stop), outcome.found
        doubtful = outcome.promise is None and (
            found.leaks or found.contradicted or found.unattacked & self.policy.stop
        )
        level = logging.WARNING if doubtful else logging.INFO
        LOGGER.log(level, "round %d: %s %s (%.1f s)", number, found.words, did, seconds)
