"""Models and shares to time: a head of a given size behind one layer that offers evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak import GradientShare, Head, capture, probe
from softleak.labels.evidence.relation import Relation
from softleak.paper.data import smooth

CASE_INPUTS = 64  # the number of entries of an input
CASE_SEED = 0  # the seed of weights, inputs and labels


@dataclass(frozen=True, eq=False)
class Case:
    """A model and what its clients sent, with the truth to score answers by.

    Attributes:
        classes: the number of classes.
        features: the number of entries of a feature.
        model: the classifier.
        head: its last linear layer.
        evidence: the relations that its layers offer.
        shares: what each client sent.
        truths: the true label (C,) of each share.
    """

    classes: int
    features: int
    model: nn.Module
    head: Head
    evidence: Sequence[Relation]
    shares: tuple[GradientShare, ...]
    truths: tuple[Tensor, ...]

    @property
    def name(self) -> str:
        """The size of the head as text."""
        return f"{self.classes}×{self.features}"


def smoothed_case(classes: int, features: int, clients: int) -> Case:
    """Return a ReLU layer with a bias, a head without one, and shares of smoothed labels.

    The ε of the labels is uniform on (0, 0.5).
    """
    generator = torch.Generator().manual_seed(CASE_SEED)
    with torch.random.fork_rng():
        torch.manual_seed(CASE_SEED)
        model = nn.Sequential(
            nn.Linear(CASE_INPUTS, features), nn.ReLU(), nn.Linear(features, classes, bias=False)
        )
    truths = []
    for _ in range(clients):
        epsilon = 0.5 * float(torch.rand((), generator=generator))
        index = int(torch.randint(classes, (), generator=generator))
        truths.append(smooth(index, classes, epsilon))
    inputs = torch.randn(clients, CASE_INPUTS, generator=generator)
    shares = tuple(capture(model, x, y) for x, y in zip(inputs, truths, strict=True))
    head = Head.of(model)
    evidence = probe(model, (CASE_INPUTS,), head=head)
    return Case(classes, features, model, head, evidence, shares, tuple(truths))
