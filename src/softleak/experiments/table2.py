"""Table 2: how often labels are recovered on untrained and trained networks."""

from __future__ import annotations

from softleak.experiments.experiment import Experiment
from softleak.experiments.kinds import MIXED, SMOOTHED
from softleak.experiments.label_cells import ACCURACIES, ACCURACY, ERROR, ERRORS, LabelCell

# The accuracy and the mean L1 error, for smoothed labels and then for mixed ones.
TABLE2_PAPER = {
    "lenet": ((0.997, 5.32e-5), (0.997, 3.62e-5)),
    "lenet trained": ((0.999, 2.39e-4), (1.0, 1.51e-4)),
    "resnet18": ((1.0, 8.78e-5), (1.0, 7.50e-5)),
    "resnet18_cifar trained": ((0.992, 3.17e-7), (0.990, 3.94e-6)),
    "alexnet": ((0.946, 2.22e-6), (0.883, 9.64e-6)),
    "alexnet trained": ((0.987, 1.09e-4), (0.989, 6.50e-8)),
    "resnet18 on flowers": ((1.0, 6.02e-6), (1.0, 2.92e-5)),
    "resnet18 on flowers trained": ((0.991, 7.36e-5), (0.999, 2.30e-4)),
}

TABLE2 = Experiment(
    "table2",
    "Table 2: labels recovered on untrained and trained networks",
    tuple(
        LabelCell(subject, kind, {ACCURACY: accuracy, ERROR: error})
        for subject, values in TABLE2_PAPER.items()
        for kind, (accuracy, error) in zip((SMOOTHED, MIXED), values, strict=True)
    ),
    (*ACCURACIES, *ERRORS),
    samples=50,
)
