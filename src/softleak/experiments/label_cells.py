"""This module holds cells of Tables 1 and 2: labels from the head's gradient alone, and from the
whole share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from softleak.data import Sample
from softleak.experiments.attacked_network import AttackedNetwork
from softleak.experiments.experiment import Attack, Column, Unit
from softleak.experiments.kind_cell import KindCell
from softleak.experiments.kinds import ONE_HOT
from softleak.experiments.shelf import Shelf
from softleak.knowledge import Knowledge
from softleak.labels.recover import recover
from softleak.matching.label_sources import HardLabel, Seen
from softleak.metrics import label_error
from softleak.results import Recovery, Status
from softleak.share import GradientShare
from softleak.sweep import Measures

LABEL_TOLERANCE = 1e-3  # the L1 distance below which an answer counts as the true label
ACCURACY, ERROR, IDLG = "accuracy", "L1", "iDLG"
ACCURACIES = (
    Column("head only", "head_exact", Unit.PERCENT, ACCURACY),
    Column("whole share", "whole_exact", Unit.PERCENT, ACCURACY),
)
ERRORS = (
    Column("L1, head only", "head_L1", Unit.SMALL, ERROR, higher=False),
    Column("L1, whole share", "whole_L1", Unit.SMALL, ERROR, higher=False),
)


@dataclass(frozen=True)
class LabelCell(KindCell):
    """A cell that recovers labels of a kind that the attacker knows."""

    def prepare(self, shelf: Shelf) -> Attack:
        """Return the attack on the labels of this cell's network."""
        target = AttackedNetwork.of(self.network, shelf)
        return self.one_by_one(target, partial(self._measured, target))

    def _measured(self, target: AttackedNetwork, sample: Sample) -> Measures:
        """Attack one share in both ways, and score the answers."""
        share = target.share(sample)
        ways = {
            "head": Knowledge(self.kind.family, head_only=True),
            "whole": Knowledge(self.kind.family),
        }
        found = {way: recover(target.subject, [share], known)[0] for way, known in ways.items()}
        measures = {
            f"{way}_{name}": value
            for way, recovery in found.items()
            for name, value in scored(recovery, sample).items()
        }
        if self.kind != ONE_HOT:  # not `is not`: a worker process holds a copy
            return measures
        return {**measures, "idlg_exact": _idlg(target, share) == int(sample.y.argmax())}


def _idlg(target: AttackedNetwork, share: GradientShare) -> int | None:
    """Return the class as iDLG's code reads it, from the lowest row; None of a zero gradient."""
    if not share[target.head.weight_name].any():
        return None
    found = HardLabel().start(Seen(target.head, share, None))
    return None if found is None else int(found.value.argmax())


def scored(recovery: Recovery, sample: Sample) -> dict[str, float | str | bool | None]:
    """Return how an answer compares with the true label of its sample.

    The error counts for UNIQUE answers only, because the paper's mean error does so as well.
    """
    unique = recovery.status is Status.UNIQUE
    error = label_error(recovery, sample.y)
    return {
        "status": recovery.status.name,
        "exact": unique and error < LABEL_TOLERANCE,
        "L1": error if unique else None,
    }
