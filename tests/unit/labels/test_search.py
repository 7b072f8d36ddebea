from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from softleak.labels.curve import Interval
from softleak.labels.search import SEARCH_FIT, search


@dataclass(frozen=True)
class Line:
    """A curve of "labels" with one entry that is zero at known places: (t − a)(t − b)…"""

    zeros: Tensor  # (N, Z)
    flat: float = 0.0  # below this |t| everything is zero: a plateau
    points_at_once: int = 10_000

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        y = (t[..., None] - self.zeros[:, None]).prod(-1, keepdim=True)
        return torch.where(t[..., None].abs() < self.flat, 0.0, y), t.abs()

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.full_like(y, 1e-9)

    def take(self, rows: Tensor) -> Line:
        return Line(self.zeros[rows], self.flat, self.points_at_once)


class Zero:
    def project(self, y: Tensor) -> Tensor:
        return torch.zeros_like(y)


def both_signs(clients: int, low: float = 1e-3, high: float = 1.5) -> Interval:
    rows = torch.arange(clients).repeat(2)
    sign = torch.tensor([1.0, -1.0], dtype=torch.double).repeat_interleave(clients)
    ends = torch.ones(2 * clients, dtype=torch.double)
    return Interval(rows, sign, low * ends, high * ends)


# Translated, reflected, near either end, and two solutions in neighbouring cells.
PLACES = [
    (0.3,),
    (-0.3,),
    (0.31, -0.29),
    (1.4999,),
    (-1.4999,),
    (0.00101,),
    (0.5, 0.55),
    (-1.0, 1.0),
]


@pytest.mark.parametrize("zeros", PLACES)
def test_finds_every_zero_wherever_it_lies(zeros):
    found = search(Line(torch.tensor([zeros], dtype=torch.double)), Zero(), both_signs(1))
    fits = found.scalar[found.fits].sort().values
    torch.testing.assert_close(
        fits, torch.tensor(sorted(zeros), dtype=torch.double), rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("points", [7, 100, 1000])
def test_pieces_of_any_size_find_the_same(points):
    places = torch.tensor([[0.31, -0.29], [0.5, 0.55], [-1.0, 1.0]], dtype=torch.double)
    whole, cut = (
        search(Line(places, points_at_once=size), Zero(), both_signs(3))
        for size in (10_000, points)
    )
    assert torch.equal(whole.client[whole.fits], cut.client[cut.fits])
    torch.testing.assert_close(whole.scalar[whole.fits], cut.scalar[cut.fits], rtol=1e-9, atol=0)


def test_clients_do_not_disturb_each_other():
    places = torch.rand(50, 1, dtype=torch.double) * 2.8 - 1.4
    places = torch.where(places.abs() < 2e-3, 0.1, places)
    together = search(Line(places), Zero(), both_signs(50))
    fits = together.fits
    assert sorted(together.client[fits].tolist()) == list(range(50))
    torch.testing.assert_close(together.scalar[fits], places[together.client[fits], 0])


def test_the_interval_is_where_it_fits():
    line = Line(torch.tensor([[0.3]], dtype=torch.double))
    found = search(line, Zero(), both_signs(1))
    fits = found.fits
    width = SEARCH_FIT * 1e-9
    torch.testing.assert_close(
        found.low[fits], torch.tensor([0.3 - width], dtype=torch.double), rtol=1e-10, atol=0
    )
    torch.testing.assert_close(
        found.high[fits], torch.tensor([0.3 + width], dtype=torch.double), rtol=1e-10, atol=0
    )


@pytest.mark.parametrize("sign", [0, 1])
def test_a_plateau_is_one_solution_with_its_ends(sign):
    found = search(Line(torch.tensor([[9.0]], dtype=torch.double), flat=0.2), Zero(), both_signs(1))
    fits = found.fits.nonzero()[:, 0]
    assert len(fits) == 2  # one for each sign
    low, high = found.low[fits[sign]], found.high[fits[sign]]
    assert {round(abs(float(low)), 3), round(abs(float(high)), 3)} == {0.001, 0.2}


def test_nothing_fits_where_nothing_is_zero():
    found = search(Line(torch.tensor([[9.0]], dtype=torch.double)), Zero(), both_signs(1))
    assert not found.fits.any()
    assert torch.equal(found.low, found.high)
