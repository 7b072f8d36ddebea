"""§4.2, App. D and E: the paper's networks inverted. Its figures: 51 and 67 dB on FCN-4 (90 before
quantisation), 21 to 34 dB on LeNet by gradient matching."""

from __future__ import annotations

from statistics import median

import pytest

from benchmarks.inversion_accuracy import Cell, Scored, cells, measure
from softleak.paper.data import Mixup
from softleak.paper.networks import CIFAR10, Shelf

CELLS = [cell for cell in cells() if cell.network.source == CIFAR10]  # its images are embedded
NAMES = [f"{cell.title}, {type(cell.kind.augmentation).__name__}" for cell in CELLS]
# LeNets whose images are found by the thorough pass, which takes seconds for each.
THOROUGH = ("lenet leaky", "lenet tanh")


def sparing(cell: Cell) -> object:
    """A cell, run less often if it takes long: the kind of label is nothing to an inversion."""
    if cell.title not in THOROUGH:
        return cell
    mixed = isinstance(cell.kind.augmentation, Mixup)
    return pytest.param(cell, marks=pytest.mark.slow if mixed else pytest.mark.once)


FEW_CELLS = [sparing(cell) for cell in CELLS]


# What the median of a hundred images and the worst one have to reach, in dB: some 3 and 10 less
# than they do in docs/RESULTS.md. Rounding alone moves one image of the trained LeNet by up to
# 13 dB (84.4 without AVX2, 97.9 with it, probably by another pass); a median of a hundred has a
# standard error of 0.6 dB there. With LeakyReLU a few images are lost to wrong signs, other ones on
# every machine.
EXPECTED = {
    "fcn4": (180, 165),
    "uniform": (105, 75),
    "default": (107, 95),
    "trained": (88, 60),
    "leaky": (94, 5),
    "tanh": (125, 110),
}
FEW = 3
# Three fixed images are no sample. The medians of the LeNets were 8.7 to 14.3 dB above what this
# leaves: the trained one with and without AVX2, uniform and default without, leaky and tanh with.
FEW_BELOW = 7


def expected(cell: Cell) -> tuple[float, float]:
    """What the median and the worst of a hundred images have to reach, in dB."""
    name = cell.title.split()[0 if cell.title.startswith("fcn4") else -1]
    return EXPECTED[name]


def check(cell: Cell, scores: list[Scored], below: float = 0.0) -> None:
    """Require the expected quality, ``below`` by so many dB in the median."""
    middle, worst = expected(cell)
    assert median(score.psnr for score in scores) >= middle - below
    assert min(score.psnr for score in scores) >= worst
    assert median(score.ssim for score in scores) > 0.9995
    assert sum(score.ratio > 3 for score in scores) == 0  # nobody is promised more than comes back


@pytest.mark.parametrize("cell", FEW_CELLS, ids=NAMES)
def test_inputs_come_back(cell):
    """The median of three stands whichever one of them another machine's rounding costs."""
    scores = measure(cell, Shelf(), FEW)
    check(cell, scores, FEW_BELOW)
    lost = 1 if cell.title.endswith("leaky") else 0  # and the prediction then says far too little
    assert sum(score.honest for score in scores) >= FEW - lost
    assert all(score.bits for score in scores) == cell.title.startswith("fcn4")


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=NAMES)
def test_a_hundred_inputs_come_back(cell):
    scores = measure(cell, Shelf(), 100)
    check(cell, scores)
    # 93 and 94 with LeakyReLU, with a standard deviation of 2.5, and all of them otherwise.
    honest = 85 if cell.title.endswith("leaky") else 97
    assert sum(score.honest for score in scores) >= honest
    assert sum(score.bits for score in scores) >= 95 or not cell.title.startswith("fcn4")
