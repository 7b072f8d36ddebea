from __future__ import annotations

import math
from importlib.util import find_spec

import pytest
import torch

import softleak as sl
from softleak.defenses.dpsgd import DPSGD
from softleak.paper import data, models

pytestmark = pytest.mark.skipif(find_spec("opacus") is None, reason="needs the extra `dp`")


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def model() -> torch.nn.Module:
    return models.mlp(3072, (32,)).eval()


def test_without_noise_it_is_the_clipped_mean(model, draw):
    samples = draw(data.Smoothing(), 2)
    x, y = torch.stack([s.x for s in samples]), torch.stack([s.y for s in samples])
    sent = DPSGD(1e-9, 0.5, generator()).capture(model, x, y)
    clipped = []
    for sample in samples:
        share = sl.capture(model, sample.x, sample.y)
        norm = math.hypot(*(float(g.norm()) for g in share.values()))
        clipped.append(share.scaled(min(1.0, 0.5 / norm)))
    for name, g in sent.items():
        expected = (clipped[0][name] + clipped[1][name]) / 2
        assert torch.allclose(g, expected, atol=1e-6)
    assert sent.input_shape == (3, 32, 32)


def test_the_noise_has_its_size_and_the_model_stays(model, draw):
    (sample,) = draw(data.Smoothing(), 1)
    before = {name: p.clone() for name, p in model.named_parameters()}
    client = DPSGD(0.2, 0.5, generator())
    sent = client.capture(model, sample.x[None], sample.y[None])
    clean = sl.capture(model, sample.x, sample.y)
    norm = math.hypot(*(float(g.norm()) for g in clean.values()))
    name = "features.0.weight"
    noise = sent[name] - clean[name] * min(1.0, 0.5 / norm)
    assert float(noise.std()) == pytest.approx(client.std, rel=0.02)
    assert not model.training
    assert all(torch.equal(p, before[n]) and p.grad is None for n, p in model.named_parameters())


def test_epsilon_is_that_of_the_gaussian_mechanism():
    # One release at Rényi order α: at most ε = α/(2 z²) + log(1/δ)/(α − 1).
    z, delta = 2.0, 1e-5
    simple = min(a / (2 * z**2) + math.log(1 / delta) / (a - 1) for a in range(2, 200))
    found = DPSGD(z, 1.0, generator(), delta=delta).epsilon()
    assert 0.7 * simple < found <= simple
    assert DPSGD(z, 1.0, generator(), steps=10).epsilon() > found
    assert DPSGD(z, 1.0, generator(), sample_rate=0.01).epsilon() < found


def test_what_opacus_cannot_clip_is_refused():
    with pytest.raises(sl.SoftleakError, match="Opacus"):
        DPSGD(1.0, 1.0, generator()).capture(
            models.resnet20(), torch.zeros(1, 3, 32, 32), torch.full((1, 10), 0.1)
        )
    with pytest.raises(sl.SoftleakError, match="expected"):
        DPSGD(0.0, 1.0, generator())
    with pytest.raises(sl.SoftleakError, match="expected"):
        DPSGD(1.0, 1.0, generator(), sample_rate=2.0)
