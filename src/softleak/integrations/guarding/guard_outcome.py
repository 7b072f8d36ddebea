"""This module holds what a guard found in an update and did about it, in words and in metrics."""

from __future__ import annotations

from dataclasses import dataclass

from softleak.auditing.rates import Leak
from softleak.auditing.utility import Utility
from softleak.auditing.weakest import Stopped
from softleak.integrations.guarding.round_findings import ClientAudit
from softleak.share import GradientShare


@dataclass(frozen=True, eq=False)
class GuardOutcome:
    """This holds the audit of an update, and what became of the update.

    Attributes:
        found: what the update gives away without a defence.
        sent: what is sent instead of it; None if it goes out as it is, or not at all.
        stopped: the defence that was chosen.
        left: what is left of the update in what is sent.
        refusal: why it is not sent; empty if it is.
        processor: the processor time in seconds that the guard took.
    """

    found: ClientAudit
    sent: GradientShare | None = None
    stopped: Stopped | None = None
    left: Utility | None = None
    refusal: str = ""
    processor: float = 0.0

    def words(self, stop: frozenset[Leak]) -> str:
        """Return what became of the update, in sentences.

        Args:
            stop: the leaks that the guard is told to stop.
        """
        if self.refusal:
            return f"Refused: {self.refusal}."
        if self.stopped is not None:
            guesses = self.stopped.guesses
            right = "" if guesses is None else (
                f"; class right in {guesses.hits} of {guesses.trials} trials"
            )  # fmt: skip
            left = "" if self.left is None else f"; cosine to the update {self.left.cosine:.2f}"
            return (
                f"Sent with noise of standard deviation {self.stopped.setting:.2g}"
                f"{self.stopped.treatment.words}, behind which this attack did not succeed{right}"
                f"{left}."
            )
        found, unknown = self.found, self.found.unattacked & stop
        said = {
            "It gives away what it should not": found.leaks & stop,
            "This guard is told to stop what was not attacked": unknown,
            "It gives away what this guard is not told to stop": found.leaks - stop,
        }
        told = [f"{words}: {named(leaks)}." for words, leaks in said.items() if leaks]
        return " ".join(["Sent as it is.", *told])

    def metrics(self, stop: frozenset[Leak], seconds: float) -> dict[str, float]:
        """Return the outcome as numbers for a framework's metrics.

        Every reply of a guard has the same names, because strategies insist on that. Inputs are
        attacked only if the guard is to stop them; otherwise they have no number. What could not be
        attacked this time is counted by a number of its own.

        Args:
            stop: the leaks that the guard is told to stop.
            seconds: the time that the guard took.
        """
        never = {Leak.INPUT} - stop
        leaks, unattacked = self.found.leaks, self.found.unattacked
        return {
            **{f"guard-{leak.value}": float(leak in leaks) for leak in Leak if leak not in never},
            **{f"guard-{leak.value}-not-attacked": float(leak in unattacked) for leak in Leak},
            "guard-defended": float(self.stopped is not None),
            "guard-noise": 0.0 if self.stopped is None else self.stopped.setting,
            "guard-kept": 1.0 if self.stopped is None else self.stopped.treatment.kept,
            "guard-length": 1.0 if self.stopped is None else self.stopped.treatment.length,
            "guard-cosine": 1.0 if self.left is None else self.left.cosine,
            "guard-class-bound": 1.0 if self.stopped is None else self.stopped.class_bound,
            "guard-seconds": seconds,
            "guard-processor-seconds": self.processor,
        }


def named(leaks: frozenset[Leak]) -> str:
    """Return the names of some kinds of leak, in order."""
    return ", ".join(sorted(leak.value for leak in leaks))
