"""Models and shares to time: a head of a given size behind one layer that leaves evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak import GradientShare, Head, capture, probe
from softleak.data import smooth
from softleak.labels.evidence.relation import Relation

INPUTS = 64
SEED = 0


@dataclass(frozen=True, eq=False)
class Case:
    """A model and what its clients sent, with the truth to score answers by."""

    classes: int
    features: int
    model: nn.Module
    head: Head
    evidence: Sequence[Relation]
    shares: tuple[GradientShare, ...]
    truths: tuple[Tensor, ...]

    @property
    def name(self) -> str:
        return f"{self.classes}×{self.features}"


def smoothed_case(classes: int, features: int, clients: int) -> Case:
    """Smoothed labels, ε ~ U(0, 0.5), behind a biased ReLU layer and a head without bias."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = nn.Sequential(
            nn.Linear(INPUTS, features), nn.ReLU(), nn.Linear(features, classes, bias=False)
        )
    truths = []
    for _ in range(clients):
        epsilon = 0.5 * float(torch.rand((), generator=generator))
        index = int(torch.randint(classes, (), generator=generator))
        truths.append(smooth(index, classes, epsilon))
    inputs = torch.randn(clients, INPUTS, generator=generator)
    shares = tuple(capture(model, x, y) for x, y in zip(inputs, truths, strict=True))
    head = Head.of(model)
    evidence = probe(model, (INPUTS,), head=head)
    return Case(classes, features, model, head, evidence, shares, tuple(truths))
