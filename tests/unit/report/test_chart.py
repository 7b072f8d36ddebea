from __future__ import annotations

import pytest

from softleak.audit.leaks import Leak
from softleak.audit.sweeps import Point, Rate, Response
from softleak.present.page import FRAME, chart

L, C = Leak.LABEL, Leak.CLASS


def response(hits: list[int], settings: list[float], stops: dict[Leak, float]) -> Response:
    rates = ({L: Rate(n, 4)} for n in hits)
    points = tuple(Point(s, r) for s, r in zip(settings, rates, strict=True))
    return Response("noise", "standard deviation", points, stops)


def test_rates_are_drawn_from_bottom_to_top_and_settings_from_left_to_right():
    drawn = chart(response([4, 2, 0], [1e-3, 1e-2, 1e-1], {L: 0.03}))
    (line,) = drawn["lines"]
    assert [dot["x"] for dot in line["dots"]] == [FRAME.left, 174, FRAME.width - FRAME.right]
    assert [dot["y"] for dot in line["dots"]] == [FRAME.top, 75, FRAME.height - FRAME.bottom]
    assert all(dot["high"] <= dot["y"] <= dot["low"] for dot in line["dots"])
    assert line["path"].startswith("40.0,14.0 174.0,75.0 ")
    assert drawn["drawn"]


@pytest.mark.parametrize(
    ("hits", "settings", "stops", "words", "stopped"),
    [
        ([4, 0], [0.1, 1.0], {L: 0.5}, "did not succeed from 0.5 up, 0 of 4", True),
        ([4, 0], [1.0, 0.1], {L: 0.5}, "did not succeed from 0.5 down, 0 of 4", True),
        ([4, 3], [0.1, 1.0], {}, "still succeeds, 3 of 4", False),
    ],
)
def test_the_table_says_where_an_attack_ends(hits, settings, stops, words, stopped):
    label, class_, _ = chart(response(hits, settings, stops))["cells"]
    assert (label["words"], label["stopped"]) == (words, stopped)
    assert (class_["words"], class_["stopped"]) == ("not tried", False)


def test_many_settings_have_few_ticks_and_one_setting_is_not_drawn():
    many = chart(response([1] * 9, [float(n) for n in range(9)], {}))
    assert len(many["ticks"]) <= 4
    assert not chart(response([1], [1.0], {}))["drawn"]
