from __future__ import annotations

import pytest

from softleak.audit import Audit, Refusal
from softleak.audit.leaks import Leak
from softleak.audit.sweeps import Point, Rate, Response, WhatIf
from softleak.present.page import render


def test_a_chart_of_defences_is_drawn_within_its_frame():
    points = tuple(Point(s, {Leak.LABEL: Rate(n, 4)}) for s, n in ((0.1, 4), (1.0, 0)))
    tried = WhatIf((Response("noise", "standard deviation", points, {Leak.LABEL: 0.5}),), 4, 2)
    page = render(Audit((), what_if=tried))
    assert 'viewBox="0 0 320 170"' in page
    assert '<line class="axis" x1="40" x2="308" y1="75.0" y2="75.0"/>' in page
    assert '<polyline points="40.0,14.0 308.0,136.0"/>' in page
    assert "did not succeed from 0.5 up, 0 of 4" in page


@pytest.mark.parametrize(("count", "words"), [(1, "1 file was not audited"), (2, "2 files were")])
def test_refused_files_are_counted_and_escaped(count, words):
    page = render(Audit((), (Refusal("<b>bad</b>", "truncated"),) * count))
    assert words in page
    assert "&lt;b&gt;bad" in page
    assert "<b>bad" not in page
