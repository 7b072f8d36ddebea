"""Where an attack ends as a defence grows."""

from __future__ import annotations

import pytest

from softleak.audit.leaks import Leak
from softleak.audit.sweeps import Point, Rate
from softleak.audit.whatif import end_of, from_end


def points(settings, hits) -> list[Point]:
    pairs = zip(settings, hits, strict=True)
    return [Point(float(s), {Leak.LABEL: Rate(h, 2)}) for s, h in pairs]


def test_an_end_has_no_success_beyond_it():
    """Leakage may come back as a defence grows, as it does with pruning."""
    tried = points((1, 2, 3, 4, 5), (2, 0, 1, 0, 0))
    assert end_of(tried, Leak.LABEL, 0, lambda _: False) == 4.0
    assert end_of(tried[:3], Leak.LABEL, 3, lambda _: False) is None
    assert end_of(tried[3:], Leak.LABEL, 3, lambda _: True) == 4.0  # the weakest of all
    assert end_of(tried, Leak.INPUT, 3, lambda _: True) is None  # not tried


@pytest.mark.parametrize(("settings", "end"), [((1, 256), 20.0), ((256, 1), 20.0)])
def test_bisection_narrows_the_gap_on_either_side(settings, end):
    weak, strong = settings

    def succeeds(setting: float) -> bool:
        return setting < end if strong > weak else setting > end

    found = end_of(points(settings, (1, 0)), Leak.LABEL, 3, succeeds)
    assert not succeeds(found)
    assert succeeds(found / 2 if strong > weak else found * 2)


def test_what_is_stronger_than_an_end_depends_on_how_the_defence_grows():
    up = points((1, 2, 3), (1, 0, 0))
    assert [p.setting for p in from_end(up, 1.5)] == [2.0, 3.0]
    assert [p.setting for p in from_end(up[::-1], 1.5)] == [1.0]
