"""What an update of several samples or local steps still says, with its counts if they hold.

A count takes the update for the mean gradient of one step on all samples the client says it used.
Most clients take more steps. So it is looked at first whether this one did.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from softleak.audit import Subject
from softleak.audit.composition import CompositionFinding, read_composition
from softleak.audit.reports import AuditReport
from softleak.integrations.flower.update import Update
from softleak.labels.onestep import Balance
from softleak.share import GradientShare


@dataclass(frozen=True, eq=False)
class SeveralReader:
    """Reads updates of several samples, once there is one to read."""

    subject: Subject

    @cached_property
    def _balance(self) -> Balance | None:
        return Balance.of(self.subject.model, self.subject.head, self.subject.input_shape)

    def read(self, update: Update, share: GradientShare, report: AuditReport) -> AuditReport:
        """The report, with counts of the classes or the reason why there are none."""
        if not report.several or not report.composition.attacked:
            return report
        samples, doubt = self._counted(update, share)
        if samples is not None:
            return replace(report, composition=self._composition(share, samples))
        found = report.composition
        return replace(report, composition=replace(found, message=f"{found.message}; {doubt}"))

    def _counted(self, update: Update, share: GradientShare) -> tuple[int | None, str]:
        """How many samples to count, or why none are."""
        no = "samples of each class were not counted:"
        if update.samples is None:
            return None, f"{no} the client did not say how many it used"
        if update.lr is None:
            return None, f"{no} the learning rate is not known"
        if self._balance is None:
            return None, (
                f"{no} counting takes one step on all of them, which cannot be checked on this "
                "network (it needs a ReLU before the last layer)"
            )
        checked = self._balance.check(share, dict(self.subject.model.named_parameters()), update.lr)
        if not checked.proved:
            return None, f"{no} counting takes one step on all of them, and {checked.reason}"
        return update.samples, ""

    def _composition(self, share: GradientShare, samples: int) -> CompositionFinding:
        parameters = dict(self.subject.model.named_parameters())
        known = replace(share, scale="known")
        reader = self.subject.batch_reader
        return read_composition(reader, known, samples, declared=True, parameters=parameters)
