from __future__ import annotations

import pytest
import torch

from softleak.core.errors import OptionError
from softleak.core.share import GradientShare
from softleak.defenses import GaussianNoise, OnKept, PercentileNoise, Prune
from softleak.defenses.dpsgd import PrivateTraining
from softleak.defenses.flare_filters import FlareFilter


def share() -> GradientShare:
    source = torch.Generator().manual_seed(0)
    drawn = {"a.weight": (20, 30), "b.weight": (5, 20)}
    return GradientShare({n: torch.randn(s, generator=source) for n, s in drawn.items()})


@pytest.mark.parametrize("epsilon", [1.0, 8.0, 1e3])
@pytest.mark.parametrize("training", [PrivateTraining(), PrivateTraining(rate=0.01, steps=1000)])
def test_the_noise_multiplier_spends_the_epsilon_and_no_more(training, epsilon):
    found = training.noise_multiplier(epsilon)
    assert training.dpsgd(found).epsilon() <= epsilon
    assert training.dpsgd(found * 0.99).epsilon() > epsilon


def test_less_epsilon_is_more_noise_on_a_share_that_is_clipped_first():
    training = PrivateTraining(clip=0.5)
    sent = [training.defense(epsilon, 99.0, 0)(share()) for epsilon in (1e6, 1.0)]
    assert sent[0].norm() == pytest.approx(0.5, rel=0.05)
    assert sent[1].norm() > 10 * sent[0].norm()


def test_noise_on_the_kept_entries_leaves_the_others_at_zero():
    kept = Prune(0.1)(share())
    sent = OnKept(GaussianNoise(1.0, 0))(kept)
    assert all(torch.equal(sent[n] == 0, kept[n] == 0) for n in kept)
    assert not torch.equal(sent["a.weight"], kept["a.weight"])


def test_noise_in_units_of_a_percentile_ignores_zeros():
    held = GradientShare({"a": torch.cat([torch.zeros(5000), torch.full((5000,), 2.0)])})
    off = PercentileNoise(0.5, 95.0, 0)(held)["a"] - held["a"]
    assert float(off.std()) == pytest.approx(1.0, rel=0.05)
    with pytest.raises(OptionError, match="percentile from 0 to 100"):
        PercentileNoise(1.0, 101.0, 0)


def test_flares_percentile_filter_cuts_small_entries_and_limits_large_ones():
    held = share()
    sent = FlareFilter("PercentilePrivacy", {"percentile": 50}, lr=0.1)(held)
    entries = torch.cat([g.flatten() for g in sent.values()])
    assert float((entries == 0).float().mean()) == pytest.approx(0.5, abs=0.01)
    assert float(entries.abs().max()) == pytest.approx(0.1)  # gamma 0.01 at learning rate 0.1
    assert all(torch.equal(g, share()[n]) for n, g in held.items())


def test_flares_sparse_vector_filter_draws_by_its_seed_and_exclude_vars_withholds():
    one, same, other = (FlareFilter("SVTPrivacy", {}, 0.1, s, True)(share()) for s in (0, 0, 1))
    assert all(torch.equal(one[n], same[n]) for n in one)
    assert any(not torch.equal(one[n], other[n]) for n in one)
    assert list(FlareFilter("ExcludeVars", {"exclude_vars": "^b"})(share())) == ["a.weight"]
    with pytest.raises(OptionError, match="expected one of PercentilePrivacy"):
        FlareFilter("Nothing")
