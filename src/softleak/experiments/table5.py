"""This module holds Table 5: labels of an untrained ResNet18 under noise.

What the paper calls the variance of the noise is its standard deviation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from softleak.defenses import GaussianNoise, LaplaceNoise
from softleak.experiments.experiment import Cell, Column, Experiment, Unit
from softleak.experiments.noise_cells import Noise, NoiseCell

CLOSE_SHARE, SCALAR_GAP = "close", "gap"  # the names of the paper's values
# The accuracy and L_s by standard deviation, with noise on the one row that the attack reads.
PAPER: Mapping[str, tuple[Noise, Mapping[float, tuple[float, float]]]] = {
    "Gaussian": (
        GaussianNoise,
        {1e-4: (1.0, 1.02e-4), 1e-3: (1.0, 1.13e-3), 1e-2: (1.0, 1.14e-2), 1e-1: (0.45, 5.82e-1)},
    ),
    "Laplace": (
        LaplaceNoise,
        {1e-4: (1.0, 1.61e-4), 1e-3: (1.0, 8.07e-4), 1e-2: (1.0, 7.95e-3), 1e-1: (0.36, 7.95e-1)},
    ),
}
STRONGER_STD = 3e-1  # a standard deviation beyond the paper's


def _cells() -> Iterator[Cell]:
    """Yield a cell for each kind and standard deviation of the noise."""
    for kind, (noise, values) in PAPER.items():
        for std, (accuracy, gap) in values.items():
            yield NoiseCell(kind, noise, std, {CLOSE_SHARE: accuracy, SCALAR_GAP: gap})
        yield NoiseCell(kind, noise, STRONGER_STD, {})


TABLE5 = Experiment(
    "table5",
    "Table 5: labels recovered under noise",
    tuple(_cells()),
    (
        Column("noise on all, head", "head_close", Unit.PERCENT, CLOSE_SHARE),
        Column("noise on all, whole", "whole_close", Unit.PERCENT, CLOSE_SHARE),
        Column("noise on one row", "one_row_close", Unit.PERCENT, CLOSE_SHARE),
        Column("PSO by us, on all", "pso_close", Unit.PERCENT),
        Column("PSO by us, on one row", "pso_one_row_close", Unit.PERCENT, CLOSE_SHARE),
        Column("L_s, one row", "one_row_gap", Unit.SMALL, SCALAR_GAP, higher=False),
        Column("class right, noise on all", "head_class", Unit.PERCENT),
        Column("label's L1, noise on all", "head_L1", Unit.SMALL),
        Column("label's L1, whole share", "whole_L1", Unit.SMALL),
    ),
    samples=20,
)
