"""Table 5: labels under noise, an untrained ResNet18. The paper's "variance" is the std."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from softleak.defenses import GaussianNoise, LaplaceNoise
from softleak.experiments.experiment import Cell, Column, Experiment, Unit
from softleak.experiments.noise import Noise, NoiseCell

CLOSE, GAP = "close", "gap"
# By std: accuracy and L_s, with noise on the one row the paper's attack reads.
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
BEYOND = 3e-1  # a std the paper has not


def _cells() -> Iterator[Cell]:
    for kind, (noise, values) in PAPER.items():
        for std, (accuracy, gap) in values.items():
            yield NoiseCell(kind, noise, std, {CLOSE: accuracy, GAP: gap})
        yield NoiseCell(kind, noise, BEYOND, {})


TABLE5 = Experiment(
    "table5",
    "Table 5: labels recovered under noise",
    tuple(_cells()),
    (
        Column("noise on all, head only", "head_close", Unit.PERCENT, CLOSE),
        Column("noise on all, whole share", "whole_close", Unit.PERCENT, CLOSE),
        Column("noise on one row", "one_row_close", Unit.PERCENT, CLOSE),
        Column("PSO by us, on all", "pso_close", Unit.PERCENT, CLOSE),
        Column("PSO by us, on one row", "pso_one_row_close", Unit.PERCENT, CLOSE),
        Column("L_s, one row", "one_row_gap", Unit.SMALL, GAP, higher=False),
        Column("class right, noise on all", "head_class", Unit.PERCENT),
        Column("label's L1, noise on all", "head_L1", Unit.SMALL),
        Column("label's L1, whole share", "whole_L1", Unit.SMALL),
    ),
    samples=20,
)
