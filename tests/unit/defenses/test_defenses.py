"""Every defence has one shape, and does what it says."""

from __future__ import annotations

import math

import pytest
import torch

import softleak as sl
from softleak import defenses


@pytest.fixture
def share() -> sl.GradientShare:
    generator = torch.Generator().manual_seed(1)
    drawn = {
        "a": torch.randn(40, 50, generator=generator),
        "b": torch.randn(60, generator=generator),
        "c": torch.randn(3, 4, 5, 6, generator=generator).double(),
    }
    return sl.GradientShare(drawn, input_shape=(3, 4, 5))


EVERY = [
    defenses.GaussianNoise(0.1, 0),
    defenses.LaplaceNoise(0.1, 0),
    defenses.Clip(1.0),
    defenses.Prune(0.1),
    defenses.Cast(torch.float16),
    defenses.Cast(torch.bfloat16),
    defenses.Int8(),
    defenses.Sign(),
    defenses.Composed((defenses.Clip(1.0), defenses.GaussianNoise(0.1, 0))),
]


@pytest.mark.parametrize("defense", EVERY, ids=str)
def test_everything_changes_and_nothing_is_declared(defense, share):
    before = {name: g.clone() for name, g in share.items()}
    sent = defense(share)
    assert isinstance(defense, defenses.Defense)
    assert list(sent) == list(share)
    assert sent.input_shape == share.input_shape
    assert not any(sent.noise(name) for name in sent)
    for name, g in sent.items():
        assert g.shape == share[name].shape
        assert not torch.equal(g.double(), share[name].double())
        assert torch.equal(share[name], before[name])  # the client's own gradients stay


@pytest.mark.parametrize("kind", [defenses.GaussianNoise, defenses.LaplaceNoise])
def test_noise_has_its_size_on_every_gradient(kind, share):
    big = sl.GradientShare({name: torch.zeros(200, 500) for name in share})
    for g in kind(0.03, 0)(big).values():
        assert float(g.std()) == pytest.approx(0.03, rel=0.02)
        assert abs(float(g.mean())) < 4 * 0.03 / math.sqrt(g.numel())


def test_noises_differ_in_their_tails():
    zero = sl.GradientShare({"a": torch.zeros(200_000)})
    drawn = {k: k(1.0, 0)(zero)["a"] for k in (defenses.GaussianNoise, defenses.LaplaceNoise)}
    fourth = {kind: float(g.pow(4).mean()) for kind, g in drawn.items()}
    assert fourth[defenses.GaussianNoise] == pytest.approx(3, rel=0.05)
    assert fourth[defenses.LaplaceNoise] == pytest.approx(6, rel=0.1)


def test_a_seed_repeats_its_noise_and_a_generator_does_not(share):
    seeded = defenses.GaussianNoise(0.1, 7)
    assert torch.equal(seeded(share)["a"], seeded(share)["a"])
    fresh = defenses.GaussianNoise(0.1, torch.Generator().manual_seed(7))
    first, second = fresh(share), fresh(share)
    assert torch.equal(first["a"], seeded(share)["a"])
    assert not torch.equal(first["a"], second["a"])


@pytest.mark.parametrize("kind", [defenses.GaussianNoise, defenses.LaplaceNoise])
def test_noise_is_declared_only_if_asked(kind, share):
    sent = kind(0.1, 0, declared=True)(share)
    assert [sent.noise(name) for name in sent] == pytest.approx([0.1] * len(share))


def test_clipping_scales_the_whole_share(share):
    sent = defenses.Clip(0.5)(share)
    assert math.hypot(*(float(g.norm()) for g in sent.values())) == pytest.approx(0.5)
    ratios = torch.cat([(g / share[name]).flatten().double() for name, g in sent.items()])
    assert float(ratios.max() - ratios.min()) < 1e-6
    assert defenses.Clip(1e3)(share) is share


def test_pruning_keeps_the_largest(share):
    for name, g in defenses.Prune(0.1)(share).items():
        kept = g != 0
        assert int(kept.sum()) == math.ceil(0.1 * g.numel())
        assert torch.equal(g[kept], share[name][kept])
        assert share[name][kept].abs().min() >= share[name][~kept].abs().max()


def test_casting_sends_sixteen_bits(share):
    for dtype in (torch.float16, torch.bfloat16):
        assert all(g.dtype == dtype for g in defenses.Cast(dtype)(share).values())


def test_int8_has_255_levels(share):
    for name, g in defenses.Int8()(share).items():
        step = float(share[name].abs().max()) / 127
        assert len(g.unique()) <= 255
        assert float((g - share[name]).abs().max()) <= step / 2 * 1.001
    declared = defenses.Int8(declared=True)(share)
    error = (declared["a"] - share["a"]).square().mean().sqrt()
    assert declared.noise("a") == pytest.approx(float(error), rel=0.1)


def test_a_gradient_of_zeros_stays_one():
    zero = sl.GradientShare({"a": torch.zeros(3, 3)})
    for defense in (defenses.Int8(), defenses.Sign(), defenses.Clip(1.0), defenses.Prune(0.5)):
        assert not defense(zero)["a"].any()


def test_signs(share):
    assert set(defenses.Sign()(share)["a"].unique().tolist()) == {-1.0, 1.0}


def test_composition_keeps_the_order(share):
    clip, sign = defenses.Clip(0.5), defenses.Sign()
    both = defenses.Composed((clip, sign))(share)
    assert torch.equal(both["a"], sign(clip(share))["a"])
    assert defenses.Composed(())(share) is share


@pytest.mark.parametrize(
    "make",
    [
        lambda: defenses.GaussianNoise(0.0, 0),
        lambda: defenses.LaplaceNoise(float("nan"), 0),
        lambda: defenses.Clip(-1.0),
        lambda: defenses.Prune(0.0),
        lambda: defenses.Prune(1.5),
        lambda: defenses.Cast(torch.float64),
        lambda: defenses.Composed((defenses.Sign,)),
    ],
)
def test_settings_that_make_no_sense_are_refused(make):
    with pytest.raises(sl.SoftleakError, match="expected"):
        make()
