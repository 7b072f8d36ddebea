"""Cells of Tables 1 and 2: labels from the head's gradient alone, and from the whole share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import softleak as sl
from softleak.data import Sample
from softleak.experiments.experiment import Attack, Column, Unit
from softleak.experiments.kind_cell import KindCell
from softleak.experiments.kinds import ONE_HOT
from softleak.experiments.shelf import Shelf
from softleak.experiments.target import Target
from softleak.labels.evidence.relation import Relation
from softleak.matching.label_sources import HardLabel, Seen
from softleak.metrics import label_error
from softleak.sweep import Measures

SAME = 1e-3  # in L1: the paper's labels are told apart by less
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
    """Labels of a kind that the attacker knows."""

    def prepare(self, shelf: Shelf) -> Attack:
        target = Target.of(self.network, shelf)
        return self.one_by_one(target, partial(self._measured, target))

    def _measured(self, target: Target, sample: Sample) -> Measures:
        share = target.share(sample)
        ways: dict[str, bool | Sequence[Relation]] = {"head": False, "whole": target.relations}
        found = {
            way: sl.recover_label(
                target.model, share, family=self.kind.family, evidence=evidence, head=target.head
            )
            for way, evidence in ways.items()
        }
        measures = {
            f"{way}_{name}": value
            for way, recovery in found.items()
            for name, value in scored(recovery, sample).items()
        }
        if self.kind != ONE_HOT:  # a worker's is a copy
            return measures
        return {**measures, "idlg_exact": _idlg(target, share) == int(sample.y.argmax())}


def _idlg(target: Target, share: sl.GradientShare) -> int | None:
    """The class as published code reads it, from the lowest row; of a zero gradient none."""
    if not share[target.head.weight_name].any():
        return None
    found = HardLabel().start(Seen(target.head, share, None), 0)
    return None if found is None else int(found.value.argmax())


def scored(recovery: sl.Recovery, sample: Sample) -> dict[str, float | str | bool | None]:
    """An answer beside the truth. The paper's mean error, too, is that of answers alone."""
    unique = recovery.status is sl.Status.UNIQUE
    error = label_error(recovery, sample.y)
    return {
        "status": recovery.status.name,
        "exact": unique and error < SAME,
        "L1": error if unique else None,
    }
