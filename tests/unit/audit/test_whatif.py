from __future__ import annotations

import pytest

import softleak as sl
from softleak import data
from softleak.audit import Leak, NamedShare, Options, Subject, audit_shares
from softleak.audit.rates import Point, Rate, Response
from softleak.audit.sweeps import Sweep, known_to_the_attacker, length
from softleak.audit.whatif import Target, Trial
from softleak.defenses import Clip, GaussianNoise, Int8, Prune
from softleak.report.chart import chart

OPTIONS = Options(inputs=False)


@pytest.fixture(scope="module")
def subject(trained):
    return Subject.of(trained, (3, 32, 32), inputs=False)


@pytest.fixture(scope="module")
def targets(subject, draw):
    drawn = draw(data.Smoothing(), 2)
    shares = [NamedShare(str(i), sl.capture(subject.model, s.x, s.y)) for i, s in enumerate(drawn)]
    reports = audit_shares(subject, shares, OPTIONS)
    return tuple(Target.of(*pair) for pair in zip(shares, reports, strict=True))


def quiet(_: str) -> None:
    pass


def test_wilsons_interval():
    low, high = Rate(0, 10).interval
    assert low == pytest.approx(0, abs=1e-12)
    assert high == pytest.approx(0.2775, abs=1e-3)
    low, high = Rate(5, 10).interval
    assert (low + high) / 2 == pytest.approx(0.5)


def test_clipping_hides_nothing(subject, targets):
    norm = length(targets[0].share.share)
    sweep = Sweep("Clipping", "norm", lambda s, _: Clip(s), (2 * norm, norm / 100))
    found = Trial(subject, targets, OPTIONS, sweep, 1).response(quiet)
    assert [point.rates[Leak.LABEL].hits for point in found.points] == [2, 2]
    assert found.stops == {}
    assert chart(found).cells[0].words == "still 2 of 2"


def test_noise_ends_the_label_somewhere_between(subject, targets):
    sweep = Sweep("Noise", "std", lambda s, seed: GaussianNoise(s, seed), (1e-5, 3.0))
    found = Trial(subject, targets[:1], OPTIONS, sweep, 1).response(quiet)
    assert found.points[0].rates[Leak.LABEL] == Rate(1, 1)
    assert found.points[1].rates[Leak.LABEL] == Rate(0, 1)
    assert 1e-5 < found.stops[Leak.LABEL] < 3.0
    assert "did not succeed from" in chart(found).cells[0].words


def test_the_truth_decides_success_where_it_is_known(subject, targets):
    wrong = Target(targets[0].share, targets[1].label.flip(0), None)
    sweep = Sweep("Nothing", "", lambda *_: Prune(1.0))
    found = Trial(subject, (wrong,), OPTIONS, sweep, 1).response(quiet)
    assert found.points[0].rates[Leak.LABEL] == Rate(0, 1)


def test_the_attacker_sees_that_a_share_was_clipped(targets):
    share = targets[0].share.share
    _, _, options = known_to_the_attacker(Clip(length(share) / 2), share, OPTIONS)
    assert options.scale == "unknown"
    _, _, options = known_to_the_attacker(Clip(length(share) * 2), share, OPTIONS)
    assert options.scale == "known"
    sent, declared, _ = known_to_the_attacker(Int8(), share, OPTIONS)
    assert not sent.rounding
    assert set(declared.rounding) == set(share)


def test_a_chart_of_settings():
    points = tuple(Point(s, {Leak.CLASS: Rate(h, 4)}) for s, h in ((1e-3, 4), (1.0, 0)))
    drawn = chart(Response("Noise", "std", points, {Leak.CLASS: 0.5}))
    (line,) = drawn.lines
    assert line.dots[0].y < line.dots[1].y
    assert drawn.cells[0].words == "not tried"
    assert drawn.cells[1].words == "did not succeed from 0.5, 0 of 4"
    assert not any("safe" in cell.words for cell in drawn.cells)
