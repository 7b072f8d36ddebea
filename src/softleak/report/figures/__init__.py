"""This package draws the paper's figures from runs of this code (extra `plots`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from softleak.experiments.kinds import MIXED, SMOOTHED
from softleak.report.figures.batch_figure import labels_by_size
from softleak.report.figures.canvas import Drawing
from softleak.report.figures.input_figures import comparison, sheet
from softleak.report.figures.noise_figure import errors_under_noise
from softleak.report.figures.scalar_figure import labels_along, losses

FIGURES: Mapping[str, Callable[[Drawing], None]] = {
    "figure1": losses,
    "figure2": labels_along,
    "figure3": comparison,
    "figure4": partial(sheet, kind=SMOOTHED),
    "figure5": partial(sheet, kind=MIXED),
    "figure6": errors_under_noise,
    "figure_batches": labels_by_size,
}

__all__ = ["FIGURES", "Drawing"]
