from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import softleak as sl
from softleak.audit import Leak, NamedShare, Options, Truth, audit_shares, sweeps, whatif
from softleak.audit.input_attacks import recover_input
from softleak.audit.metrics import psnr
from softleak.audit.report import LEAK_RECOGNISABLE
from softleak.audit.sweeps import Point, Rate, Response, Sweep
from softleak.audit.whatif import (
    SUCCESS_WALK_GAIN,
    InputReach,
    ResponseCurve,
    Target,
    behind,
    walks,
)
from softleak.core.knowledge import Knowledge
from softleak.core.subject import Subject
from softleak.core.vocabulary import DefenceGroup
from softleak.defenses import Cast, Clip, GaussianNoise, Int8, Prune
from softleak.inversion.chain import chain_of
from softleak.inversion.results import NoWay
from softleak.paper import data, models
from softleak.present.page import chart

OPTIONS = Options(inputs=False)
NOTHING = Sweep("Nothing", "", lambda *_: Prune(1.0))


@pytest.fixture(scope="module")
def subject(trained):
    return Subject.of(trained, (3, 32, 32))


@pytest.fixture(scope="module")
def targets(subject, draw):
    drawn = draw(data.Smoothing(), 2)
    shares = [NamedShare(str(i), sl.capture(subject.model, s.x, s.y)) for i, s in enumerate(drawn)]
    reports = audit_shares(subject, shares, OPTIONS)
    return tuple(Target.of(*pair) for pair in zip(shares, reports, strict=True))


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def connected(draw):
    """A network that is inverted in no time, with two shares and their truth."""
    torch.manual_seed(0)
    subject = Subject.of(models.mlp(3072, (64,)).eval(), (3, 32, 32))
    options = Options(normalisation=data.CIFAR10_NORM)
    drawn = draw(data.Hard(), 2)
    shares = [
        NamedShare(str(i), sl.capture(subject.model, s.x, s.y), Truth(s.y, s.x))
        for i, s in enumerate(drawn)
    ]
    reports = audit_shares(subject, shares, options)
    return subject, tuple(map(Target.of, shares, reports)), options


def test_wilsons_interval():
    low, high = Rate(0, 10).interval
    assert low == pytest.approx(0, abs=1e-12)
    assert high == pytest.approx(0.2775, abs=1e-3)
    low, high = Rate(5, 10).interval
    assert (low + high) / 2 == pytest.approx(0.5)


def test_clipping_hides_nothing(subject, targets):
    norm = targets[0].share.share.norm()
    sweep = Sweep("Clipping", "norm", lambda s, _: Clip(s), (2 * norm, norm / 100))
    found = ResponseCurve(subject, targets, OPTIONS, sweep, 1).response(quiet)
    assert [point.rates[Leak.LABEL].hits for point in found.points] == [2, 2]
    assert found.stops == {}
    assert chart(found)["cells"][0]["words"].startswith("still succeeds, 2 of 2; cosine 1.00")


def test_noise_ends_the_label_somewhere_between(subject, targets, monkeypatch):
    monkeypatch.setattr(whatif, "BISECTIONS", 1)
    sweep = Sweep("Noise", "std", lambda s, seed: GaussianNoise(s, seed), (1e-5, 3.0))
    found = ResponseCurve(subject, targets[:1], OPTIONS, sweep, 1).response(quiet)
    assert found.points[0].rates[Leak.LABEL] == Rate(1, 1)
    assert found.points[1].rates[Leak.LABEL] == Rate(0, 1)
    assert 1e-5 < found.stops[Leak.LABEL] < 3.0
    assert "did not succeed from" in chart(found)["cells"][0]["words"]


def test_the_truth_decides_success_where_it_is_known(subject, targets):
    wrong = Target(targets[0].share, targets[1].label.flip(0), None)
    found = ResponseCurve(subject, (wrong,), OPTIONS, NOTHING, 1).response(quiet)
    assert found.points[0].rates[Leak.LABEL] == Rate(0, 1)


def test_the_attacker_sees_that_a_share_was_clipped(subject, targets):
    share = targets[0].share.share
    clipped = behind(subject, targets[0], Clip(share.norm() / 2), OPTIONS)
    assert clipped.asked.knowledge.scale == "unknown"
    whole = behind(subject, targets[0], Clip(share.norm() * 2), OPTIONS)
    assert whole.asked.knowledge.scale is None  # as it was
    coarse = behind(subject, targets[0], Int8(), OPTIONS)
    assert not coarse.sent.rounding
    assert set(coarse.views(coarse.sent)[0].rounding) == set(share)


def test_noise_ends_the_input_and_every_seed_has_a_share(connected, monkeypatch):
    monkeypatch.setattr(whatif, "BISECTIONS", 1)
    subject, targets, options = connected
    sweep = Sweep("Noise", "std", lambda s, seed: GaussianNoise(s, seed), (1e-7, 1.0))
    found = ResponseCurve(subject, targets[:1], options, sweep, 3).response(quiet)
    assert [point.rates[Leak.INPUT] for point in found.points] == [Rate(3, 3), Rate(0, 3)]
    assert 1e-7 < found.stops[Leak.INPUT] <= 1.0


def test_a_quick_walk_comes_first_where_there_is_one(connected, trained):
    assert len(walks(connected[0])) == 1
    quick, thorough = walks(Subject.of(trained, (3, 32, 32)))
    assert len(quick.once(chain_of).passes) == 1
    assert len(thorough.once(chain_of).passes) == 2


def test_an_input_that_cannot_be_inverted_is_not_tried(connected):
    subject, targets, options = connected
    trial = ResponseCurve(subject.given(chain_of, NoWay("")), targets, options, NOTHING, 1)
    found = trial.response(quiet)
    assert Leak.INPUT not in found.points[0].rates
    assert chart(found)["cells"][2]["words"] == "not tried"


def test_an_input_that_cannot_be_inverted_is_tried_where_its_reach_can_be_estimated(draw):
    torch.manual_seed(0)
    subject = Subject.of(models.mlp(192, (32,)).eval(), (3, 8, 8))
    options, targets = Options(normalisation=data.CIFAR10_NORM), []
    for sample in draw(data.Hard(), 2):
        x = sample.x.reshape(3, 8, 4, 8, 4).mean((2, 4))
        share = NamedShare("", sl.capture(subject.model, x, sample.y), Truth(sample.y, x))
        targets += map(Target.of, [share], audit_shares(subject, [share], options))
    alone = subject.given(chain_of, NoWay(""))
    sweep = Sweep("Noise", "std", lambda s, seed: GaussianNoise(s, seed), (1e-6, 1e3))
    reaches = {id(targets[0]): InputReach(alone, targets[0])}
    trial = ResponseCurve(alone, tuple(targets), options, sweep, 1, reaches)
    assert trial.at(1e-6).rates[Leak.INPUT] == Rate(1, 1)  # the other target is not tried
    assert trial.at(1e3).rates[Leak.INPUT] == Rate(0, 1)
    blind = replace(trial, options=replace(options, inputs=False))
    assert Leak.INPUT not in blind.at(1e-6).rates


def test_what_the_share_did_not_give_away_is_no_target(subject, targets):
    share = targets[0].share
    both = sl.GradientShare({n: share.share[n] + targets[1].share.share[n] for n in share.share})
    (report,) = audit_shares(subject, [NamedShare("two", both)], OPTIONS)
    target = Target.of(NamedShare("two", both), report)
    assert target.label is None
    assert target.pixels is None


def test_an_update_of_several_samples_leaks_while_one_label_is_proved(subject, draw):
    drawn = draw(data.Smoothing(), 3)
    x, y = torch.cat([s.x.reshape(1, 3, 32, 32) for s in drawn]), torch.stack([s.y for s in drawn])
    share = NamedShare("three", sl.capture(subject.model, x, y.reshape(3, -1)))
    options = replace(OPTIONS, knowledge=Knowledge(sl.Smoothed(), samples=3))
    (report,) = audit_shares(subject, [share], options)
    target = Target.of(share, report)
    assert len(target.samples) == 3
    clipped = Sweep("Clipping", "norm", lambda s, _: Clip(s), (0.1,))
    noisy = Sweep("Noise", "std", lambda s, seed: GaussianNoise(s, seed), (0.1,))
    rates = [
        ResponseCurve(subject, (target,), options, sweep, 1).response(quiet).points[0].rates
        for sweep in (clipped, noisy)
    ]
    assert [rate[Leak.LABEL] for rate in rates] == [Rate(1, 1), Rate(0, 1)]
    assert [rate[Leak.CLASS] for rate in rates] == [Rate(1, 1), Rate(0, 1)]


def test_bisection_looks_no_further_than_the_first_share_that_leaks(subject, targets, monkeypatch):
    looked = []
    recover = whatif.recover
    monkeypatch.setattr(whatif, "recover", lambda *a, **k: looked.append(1) or recover(*a, **k))
    assert ResponseCurve(subject, targets, OPTIONS, NOTHING, 1).succeeds(1.0, Leak.LABEL)
    assert len(looked) == 1


def test_dpsgd_has_epsilon_on_its_axis_and_flares_filters_are_tried_by_their_classes(
    connected, monkeypatch
):
    """One share, ends of the axis only."""
    subject, targets, options = connected
    monkeypatch.setattr(sweeps, "EPSILONS", (1e12, 1.0))
    monkeypatch.setattr(whatif, "BISECTIONS", 0)
    groups = frozenset({DefenceGroup.DP_SGD, DefenceGroup.NVFLARE})
    norm = targets[0].share.share.norm()
    tried = {s.name: s for s in sweeps.sweeps(norm, (), sweeps.Asked(groups), subject.model)}
    private = ResponseCurve(subject, targets[:1], options, tried["DP-SGD"], 1).response(quiet)
    assert [point.rates[Leak.INPUT].hits for point in private.points] == [1, 0]
    assert private.stops[Leak.INPUT] == 1.0
    assert private.left[Leak.INPUT].cosine < 0.1
    assert private.points[0].utility.loss == pytest.approx(1.0, abs=0.05)
    assert private.unit == "ε"
    assert private.terms == "δ = 10⁻⁵, sampling rate 1, this update alone"
    excluded = ResponseCurve(
        subject, targets[:1], options, tried["NVFlare ExcludeVars, last layer"], 1
    )
    assert excluded.response(quiet).points[0].rates == {}  # no attack applies, so none is tried
    cut = ResponseCurve(
        subject, targets[:1], options,
        replace(tried["NVFlare PercentilePrivacy, learning rate 0.1"], settings=(10.0,)), 1,
    ).response(quiet)  # fmt: skip
    assert cut.points[0].utility.cosine < 1


def test_a_label_that_is_right_but_not_claimed_is_counted(subject, draw):
    """Behind bfloat16 the best label is that of the sample, and the attack cannot tell."""
    drawn = draw(data.Smoothing(), 3)
    shares = [NamedShare("", sl.capture(subject.model, s.x, s.y), Truth(s.y)) for s in drawn]
    reports = audit_shares(subject, shares, OPTIONS)
    targets = tuple(map(Target.of, shares, reports))
    coarse = Sweep("bfloat16", "", lambda *_: Cast(torch.bfloat16))
    found = ResponseCurve(subject, targets, OPTIONS, coarse, 1).response(quiet)
    claimed = found.points[0].rates[Leak.LABEL].hits
    assert found.unclaimed == found.points[0].unclaimed == 3 - claimed > 0
    assert (
        f"{3 - claimed} {'more ' * bool(claimed)}right though not claimed"
        in chart(found)["cells"][0]["words"]
    )
    assert not chart(found)["cells"][0]["stopped"]
    whole = ResponseCurve(subject, targets, OPTIONS, NOTHING, 1).response(quiet)
    assert whole.unclaimed == 0  # what is claimed is not counted again


def test_a_label_is_recovered_once_for_all_leaks_and_not_for_an_input_within_reach(
    connected, monkeypatch
):
    subject, targets, options = connected
    looked = []
    recover = whatif.recover
    monkeypatch.setattr(whatif, "recover", lambda *a, **k: looked.append(1) or recover(*a, **k))
    noisy = Sweep("Noise", "std", lambda s, seed: GaussianNoise(s, seed), (1e-7, 1.0))
    everything = SimpleNamespace(shows=lambda _: True)
    trial = ResponseCurve(subject, targets[:1], options, noisy, 1, {id(targets[0]): everything})
    assert trial.succeeds(1e-6, Leak.INPUT)
    assert not looked
    assert [trial.succeeds(1.0, leak) for leak in (Leak.LABEL, Leak.CLASS)] == [False, False]
    assert len(looked) == 1


def test_progress_is_told_of_every_stage(monkeypatch):
    """Four classes, since labels behind noise take longer with every class."""
    monkeypatch.setattr(whatif, "BISECTIONS", 1)
    subject, told = Subject.of(models.mlp(48, (16,), classes=4).eval(), (3, 4, 4)), []
    share = NamedShare("", sl.capture(subject.model, torch.rand(3, 4, 4), 1))
    targets = tuple(Target.of(share, report) for report in audit_shares(subject, [share], OPTIONS))
    whatif.what_if(subject, targets, OPTIONS, 1, told.append)
    assert len(told) == whatif.stages(subject)


@pytest.mark.slow
def test_a_thorough_walk_does_not_make_up_for_what_is_out_of_reach(trained, draw):
    subject = Subject.of(trained, (3, 32, 32))
    options = Options(normalisation=data.CIFAR10_NORM)
    for seed, sample in enumerate(draw(data.Smoothing(), 2)):
        sent = GaussianNoise(1.5e-4, seed)(sl.capture(trained, sample.x, sample.y))
        recovery = sl.recover_label(trained, sent)
        first, second = (
            recover_input(each, sent, recovery, replace(options, seconds=0.0))
            for each in walks(subject)
        )
        true = data.CIFAR10_NORM.invert(sample.x)
        assert first.psnr_predicted < LEAK_RECOGNISABLE - SUCCESS_WALK_GAIN
        assert psnr(second.pixels, true) < LEAK_RECOGNISABLE


def test_a_chart_of_settings():
    points = tuple(Point(s, {Leak.CLASS: Rate(h, 4)}) for s, h in ((1e-3, 4), (1.0, 0)))
    drawn = chart(Response("Noise", "std", points, {Leak.CLASS: 0.5}))
    (line,) = drawn["lines"]
    assert line["dots"][0]["y"] < line["dots"][1]["y"]
    assert drawn["cells"][0]["words"] == "not tried"
    assert drawn["cells"][1]["words"] == "did not succeed from 0.5 up, 0 of 4"
    assert not any("safe" in cell["words"] for cell in drawn["cells"])
    unsure = chart(Response("Noise", "std", points, {Leak.LABEL: 1e-3}, unclaimed=2))
    assert unsure["cells"][0]["words"] == "not tried"
    rated = tuple(Point(s, {Leak.LABEL: Rate(0, 4)}, None, 2) for s in (1e-3, 1.0))
    unsure = chart(Response("Noise", "std", rated, {Leak.LABEL: 1e-3}, unclaimed=2))
    words = "did not succeed from 0.001 up, 0 of 4, but up to 2 right though not claimed"
    assert unsure["cells"][0]["words"] == words
    assert not unsure["cells"][0]["stopped"]
