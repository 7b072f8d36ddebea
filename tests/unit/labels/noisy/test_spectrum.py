from __future__ import annotations

import pytest
import torch

import softleak as sl
from softleak.defenses import GaussianNoise, LaplaceNoise
from softleak.labels.noisy.spectrum import Spectrum, without_noisy_row

CLASSES, INPUTS = 10, 200


def gradient(samples: int) -> torch.Tensor:
    """The sum of a few single-sample head gradients."""
    generator = torch.Generator().manual_seed(0)
    delta = torch.randn(CLASSES, samples, generator=generator, dtype=torch.double)
    x = torch.rand(samples, INPUTS, generator=generator, dtype=torch.double)
    return (delta - delta.mean(0)) @ x


def noise(like: torch.Tensor, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.double)


@pytest.mark.parametrize("size", [1e-6, 1e-3, 0.1, 1.0, 10.0])
def test_the_noise_is_measured_and_is_not_taken_for_samples(size):
    G = gradient(1)
    spectrum = Spectrum.of(G + size * noise(G))
    assert spectrum.noise == pytest.approx(size, rel=0.1)
    assert spectrum.samples == 1
    assert spectrum.even


@pytest.mark.parametrize("samples", [2, 3])
@pytest.mark.parametrize("size", [1e-6, 1e-4, 1e-2])
def test_samples_stand_out_of_noise(samples, size):
    G = gradient(samples)
    assert Spectrum.of(G + size * noise(G)).samples == samples


def test_what_pruning_leaves_out_is_no_even_noise():
    G = gradient(1)
    kept = G.abs() >= G.abs().flatten().quantile(0.9)
    assert not Spectrum.of(torch.where(kept, G, 0.0)).even


@pytest.mark.parametrize("row", [0, 4, 9])
@pytest.mark.parametrize("size", [1e-4, 1e-1, 10.0])
def test_a_noisy_row_is_found_and_replaced(row, size):
    G = gradient(1)
    altered = G.clone()
    altered[row] += size * noise(G[row])
    found = without_noisy_row(altered)
    assert found is not None
    repaired, index = found
    assert index == row
    assert float((repaired - G).abs().max()) < 1e-10 * max(1.0, size)


def test_other_noise_is_not_mistaken_for_a_noisy_row():
    G = gradient(1)
    two = G.clone()
    two[[2, 5]] += 0.1 * noise(G[[2, 5]])
    assert without_noisy_row(G + 0.1 * noise(G)) is None
    assert without_noisy_row(two) is None
    single = torch.zeros_like(G)
    single[3] = G[3]
    assert without_noisy_row(single) is None


@pytest.mark.parametrize("size", [1e-4, 10.0])
def test_tails_are_told_and_drawn_in_where_they_hide_the_signal(size):
    generator = torch.Generator().manual_seed(3)
    u = torch.randn(10, generator=generator, dtype=torch.double)
    signal = torch.outer(u - u.mean(), torch.rand(512, generator=generator, dtype=torch.double))
    share = sl.GradientShare({"head": signal})
    normal = GaussianNoise(size, generator)(share)["head"]
    heavy = LaplaceNoise(size, generator)(share)["head"]
    assert not Spectrum.of(normal).heavy
    found = Spectrum.of(heavy)
    assert found.heavy
    usual = torch.ones(512, dtype=torch.double) / 512**0.5
    assert Spectrum.of(normal).light(normal, usual)[0] is normal
    light, noise = found.light(heavy, usual)
    if size < 1:
        assert light is heavy
    else:
        assert noise < 0.97 * found.noise
        assert float((light - signal).norm()) < 0.97 * float((heavy - signal).norm())
        assert float((light * signal).sum() / signal.square().sum()) == pytest.approx(1, abs=0.7)
