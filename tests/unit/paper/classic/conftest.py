"""Real captures of untrained networks, and what a classic method may be given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.paper import data, models


@pytest.fixture(scope="session")
def lenet() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return models.lenet().eval()


@pytest.fixture(scope="session")
def biased() -> nn.Module:
    """Float64, with a bias in the head."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 7)
        return nn.Sequential(*layers).double()


@pytest.fixture(scope="session")
def smoothed(lenet, draw):
    """One share and its true label; λ_r of the untrained network is negative."""
    sample = draw(data.Smoothing(), 1)[0]
    return sl.capture(lenet, sample.x, sample.y), sample.y.double()


@pytest.fixture(scope="session")
def silent(lenet) -> sl.GradientShare:
    """A share of zeros: the label is the model's own prediction."""
    return sl.GradientShare({n: torch.zeros_like(p) for n, p in lenet.named_parameters()})
