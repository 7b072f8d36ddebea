"""Tables 1 and 2, in small by default and at the paper's size with ``-m slow``."""

from __future__ import annotations

import pytest
import torch

import softleak as sl
from benchmarks.accuracy import Cell, cells, measure, target_of
from softleak.paper import models
from softleak.paper.networks import NETWORKS, AttackedNetwork, Shelf
from softleak.paper.tables import LABEL_TOLERANCE

SAMPLES = 8
FEWER_SAMPLES = {"alexnet": 4, "resnet50 at 224": 2, "resnet50 at 224, uniform": 2}
NEEDS_WEIGHTS = ("resnet18 trained", "resnet18_cifar trained")  # by `softleak train`
# A float64 share leaves this much to rounding once the softmax has all but converged (see
# tests/unit/labels/test_limits.py), unless only what is certified to 1e-11 may be called UNIQUE.
CONVERGED_FLOAT64 = 1e-6
# Where labels are not always unique, at least this fraction of them has to be. The lowest in
# docs/RESULTS.md is 0.48, of a thousand samples of a converged ResNet56.
LEAST_UNIQUE = 0.25

CELLS = [cell for cell in cells() if cell.network not in NEEDS_WEIGHTS]
# Cells that attack the same network stand together.
CELLS.sort(key=lambda c: (c.network, c.whole_share, str(c.dtype), c.training))
IDS = [
    f"{c.title}-{type(c.augmentation).__name__}-{'whole' if c.whole_share else 'head'}"
    for c in CELLS
]


@pytest.fixture(scope="module")
def prepare(shelf):
    """Networks ready to be attacked; the last one is kept, since several cells in a row have it."""
    last: dict[tuple[object, ...], AttackedNetwork] = {}

    def target(cell: Cell) -> AttackedNetwork:
        if lacking := NETWORKS[cell.network].lacking(shelf):
            pytest.skip(f"needs {lacking}: set SOFTLEAK_DATA")
        key = cell.network, cell.whole_share, cell.dtype, cell.training
        if key not in last:
            last.clear()
            last[key] = target_of(cell, NETWORKS[cell.network], shelf)
        return last[key]

    return target


def check(cell: Cell, shelf: Shelf, target: AttackedNetwork, samples: int) -> None:
    score = measure(cell, NETWORKS[cell.network], shelf, samples, target=target)
    tally = score.statuses
    assert score.wrong == 0, "a wrong label was called UNIQUE"
    assert score.missed == 0, "a set that was called AMBIGUOUS lacks the truth"
    assert score.bound_broken == 0, "an error exceeds its prediction"
    assert tally[sl.Status.NOT_SINGLE] == tally[sl.Status.NO_SOLUTION] == 0
    if cell.whole_share:
        assert not score.worst_feature >= 1e-4
        arbitrary = cell.unknown_scale and cell.family is None  # the label is then a segment
        certain = samples - tally[sl.Status.ZERO_GRADIENT]
        assert tally[sl.Status.UNIQUE] + tally[sl.Status.AMBIGUOUS] == certain
        assert certain > 0, "all gradients are zero, so nothing was tested"
        # A softmax that is one-hot to the last bit leaves the scale, and the label, open.
        saturated = cell.unknown_scale and NETWORKS[cell.network].initialise is models.uniform_
        assert arbitrary or saturated or score.exact == certain
        assert not score.worst_error >= 1e-4
    else:
        assert score.exact >= LEAST_UNIQUE * samples, "too few answers to judge their errors"
        converged = "converged" in cell.network and cell.tolerance == LABEL_TOLERANCE
        double = CONVERGED_FLOAT64 if converged else 1e-12
        assert score.mean_error < (double if cell.dtype == torch.float64 else 1e-5)
    if not cell.whole_share and cell.network != "alexnet" and "converged" not in cell.network:
        assert score.exact == samples


@pytest.mark.parametrize("cell", CELLS, ids=IDS)
def test_a_few_samples_of_every_cell(cell, shelf, prepare):
    check(cell, shelf, prepare(cell), FEWER_SAMPLES.get(cell.network, SAMPLES))


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=IDS)
def test_every_cell_at_full_size(cell, shelf, prepare):
    check(cell, shelf, prepare(cell), 100 if cell.whole_share else 1000)
