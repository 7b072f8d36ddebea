"""This module draws how many labels of a batch are recovered, over the size of the batch."""

from __future__ import annotations

from statistics import fmean

from softleak.errors import DataError
from softleak.experiments.batch_table import BATCH_TABLE, PROVED_PART, RIGHT_PART, BatchCell
from softleak.report.figures.canvas import Drawing, pyplot
from softleak.sweep import numbers

Line = dict[int, float]  # the mean over batches, by their size


def labels_by_size(drawing: Drawing) -> None:
    """Draw a panel per network and a line per kind of label: what is right, and what is proved."""
    found = {measure: _lines(drawing, measure) for measure in (RIGHT_PART, PROVED_PART)}
    networks = list(dict.fromkeys(network for network, _ in found[RIGHT_PART]))
    if not networks:
        raise DataError(
            "the figure of batches is drawn from records: run `softleak reproduce batches`"
        )
    figure, panels = pyplot().subplots(
        1, len(networks), figsize=(3.4 * len(networks), 3.4), layout="constrained", squeeze=False
    )
    for axes, network in zip(panels[0], networks, strict=True):
        for (name, kind), line in found[RIGHT_PART].items():
            if name == network:
                sure = found[PROVED_PART][name, kind]
                (drawn,) = axes.plot(list(line), list(line.values()), "o-", label=kind)
                axes.plot(list(sure), list(sure.values()), "x--", color=drawn.get_color())
        axes.set(title=network, xlabel="samples in the batch", ylim=(-0.03, 1.03))
        axes.legend(fontsize=7)
    panels[0][0].set_ylabel("part of labels: right (—), proved (– –)")
    drawing.save(figure)


def _lines(drawing: Drawing, measure: str) -> dict[tuple[str, str], Line]:
    lines: dict[tuple[str, str], Line] = {}
    for cell in BATCH_TABLE.cells:
        values = numbers(drawing.records.of(BATCH_TABLE.name, cell.name), measure)
        if values and isinstance(cell, BatchCell):
            lines.setdefault((cell.subject, cell.kind.name), {})[cell.size] = fmean(values)
    return lines
