"""This module draws Figure 6: the label's error over the size of the noise."""

from __future__ import annotations

from statistics import fmean

from softleak.errors import DataError
from softleak.experiments.noise_cells import NoiseCell
from softleak.experiments.table5 import PAPER, TABLE5
from softleak.report.figures.canvas import Drawing, pyplot
from softleak.sweep import numbers

WAYS = {
    "head": "noise on all, head only",
    "whole": "noise on all, whole share",
    "one_row": "noise on one row",
    "pso_one_row": "one row, the paper's PSO",
}


def errors_under_noise(drawing: Drawing) -> None:
    """Draw a panel per kind of noise and a line per way to read the share."""
    figure, panels = pyplot().subplots(1, len(PAPER), figsize=(10, 3.6), layout="constrained")
    drawn = 0
    for axes, kind in zip(panels, PAPER, strict=True):
        for way, words in WAYS.items():
            means = _means(drawing, kind, f"{way}_L1")
            drawn += len(means)
            axes.loglog(list(means), list(means.values()), "o-", label=words)
        axes.set(title=f"{kind} noise", xlabel="standard deviation", ylabel="mean L1 error")
        axes.legend(fontsize=7)
    if not drawn:
        raise DataError("figure 6 is drawn from Table 5's records: run `softleak reproduce table5`")
    drawing.save(figure)


def _means(drawing: Drawing, kind: str, measure: str) -> dict[float, float]:
    means = {}
    for cell in TABLE5.cells:
        if isinstance(cell, NoiseCell) and cell.kind == kind:
            values = numbers(drawing.records.of("table5", cell.name), measure)
            if values:
                means[cell.std] = fmean(values)
    return means
