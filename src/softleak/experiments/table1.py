"""Table 1: how often labels are recovered on an untrained ResNet50."""

from __future__ import annotations

from softleak.experiments.experiment import Column, Experiment, Unit
from softleak.experiments.kinds import MIXED, ONE_HOT, SMOOTHED
from softleak.experiments.label_cells import ACCURACIES, ACCURACY, IDLG, LabelCell

# The accuracy for smoothed, mixed and one-hot labels, and that of iDLG for one-hot labels.
TABLE1_PAPER = {
    "resnet50 on cifar100": (0.992, 1.0, 1.0, 1.0),
    "resnet50 on flowers": (0.991, 0.976, 0.956, 0.956),
    "resnet50 on imagenet": (1.0, 1.0, 0.999, 0.999),
}


def _cells(subject: str) -> tuple[LabelCell, ...]:
    """Return the three cells of one network."""
    smoothed, mixed, one_hot, idlg = TABLE1_PAPER[subject]
    return (
        LabelCell(subject, SMOOTHED, {ACCURACY: smoothed}),
        LabelCell(subject, MIXED, {ACCURACY: mixed}),
        LabelCell(subject, ONE_HOT, {ACCURACY: one_hot, IDLG: idlg}),
    )


TABLE1 = Experiment(
    "table1",
    "Table 1: labels recovered on an untrained ResNet50",
    tuple(cell for subject in TABLE1_PAPER for cell in _cells(subject)),
    (*ACCURACIES, Column("iDLG, by us", "idlg_exact", Unit.PERCENT, IDLG)),
    samples=20,
)
