"""What an update of several samples or local steps gives away about its classes and samples.

Counting samples per class assumes that the update is one step on all samples that the client says
it used. Most clients take more steps, so it is first checked whether this one took a single step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from softleak.auditing.audit_options import Options
from softleak.auditing.class_parts import parts_in_words
from softleak.auditing.composition import counted
from softleak.auditing.reports import AuditReport
from softleak.auditing.sample_findings import read_samples
from softleak.integrations.guarding.client_update import Update
from softleak.knowledge import Knowledge
from softleak.labels.local.proportions import StandIns
from softleak.labels.onestep import Balance
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True, eq=False)
class SeveralReader:
    """A reader of updates that hold several samples.

    Attributes:
        subject: the model with the weights that the clients were sent.
        stand_ins: images with their classes on which local training is simulated.
    """

    subject: Subject
    stand_ins: StandIns | None = None

    @cached_property
    def _balance(self) -> Balance | None:
        """The check for a single step; None if this network does not allow it."""
        return Balance.of(self.subject.model, self.subject.head, self.subject.input_shape)

    def read(self, update: Update, share: GradientShare, report: AuditReport) -> AuditReport:
        """Return the report with the number of samples per class, or why they were not counted.

        Args:
            update: what is known of the client's step.
            share: the gradient behind the step.
            report: what the audit found in it.
        """
        if not report.several or not report.composition.attacked:
            return report
        reason = self._uncounted(update, share)
        if not reason and update.samples is not None:
            known = Knowledge(scale="known", samples=update.samples, is_gradient=True)
            found = counted(self.subject, share, report.composition, update.samples)
            report = replace(report, composition=found)
            if update.samples >= self.subject.head.classes:  # more than the head's rows tell apart
                return report
            single = read_samples(self.subject, share, found, Options(known))
            return replace(report, samples=single)
        found = report.composition
        said = f"{found.message}; samples of each class were not counted: {reason}"
        sent = update.trained
        parts = "" if sent is None else parts_in_words(
            self.subject, sent, update.samples, self.stand_ins
        )  # fmt: skip
        said = f"{said}; {parts}" if parts else said
        return replace(report, composition=replace(found, message=said))

    def _uncounted(self, update: Update, share: GradientShare) -> str:
        """Return why samples cannot be counted; empty if they can."""
        if update.samples is None:
            return "the client did not say how many it used"
        if update.lr is None:
            return "the learning rate is not known"
        if self._balance is None:
            return (
                "counting takes one step on all of them, which cannot be checked on this network "
                "(it needs a ReLU before the last layer)"
            )
        checked = self._balance.check(share, self.subject.parameters, update.lr)
        return "" if checked.proved else (
            f"counting takes one step on all of them, and {checked.reason}"
        )  # fmt: skip
