"""How much a family's equations test beyond what its unknowns absorb."""

from __future__ import annotations

from dataclasses import replace

import torch

from softleak import SmoothedMixed
from softleak.labels.certify import DOUBT_SPARE_BITS, spare_bits
from softleak.labels.curve import PseudoLabels

RELATIVE = 2.0**-24


def sure_prediction(slack: float) -> PseudoLabels:
    """The curve of ``y = 0.42 e₁ + 0.31 e₀ + 0.27 e₇``, of which class 1 is predicted for sure."""
    logits = torch.tensor([-60.0, 60, -35, -63, -64, -65, -35, -37, 24, -9], dtype=torch.double)
    p = torch.softmax(logits, 0)
    y = torch.zeros_like(p)
    y[[0, 1, 7]] = torch.tensor([0.31, 0.42, 0.27], dtype=torch.double)
    delta = p - y
    one = torch.ones(1, dtype=torch.double)
    return PseudoLabels(
        logits[None] * delta.norm(), torch.zeros_like(p), (delta / delta.norm())[None], RELATIVE,
        1e-38, slack * one, RELATIVE * 200 * one, 0.0,
    )  # fmt: skip


def test_an_entry_that_the_scalar_levels_tests_nothing_through_the_floor():
    """A mix of three classes meets one of two where the scalar levels the predicted class.

    The floor moves with that entry, and so does the distance of all others from it.
    """
    curve = sure_prediction(5e-9)
    meets = (1 / curve.u[:, 1]).clone()  # y₁ = 1 − t u₁ is zero there
    assert float(spare_bits(curve, SmoothedMixed(2), meets, 1)) < DOUBT_SPARE_BITS


def test_entries_that_depend_on_the_scalar_each_on_its_own_test_it():
    torch.manual_seed(0)
    logits = torch.randn(10, dtype=torch.double)
    y = torch.full((10,), 0.01, dtype=torch.double)
    y[3] = 0.91
    delta = torch.softmax(logits, 0) - y
    curve = replace(
        sure_prediction(0.0), a=logits[None] * delta.norm(), u=(delta / delta.norm())[None]
    )
    assert float(spare_bits(curve, SmoothedMixed(2), delta.norm()[None], 1)) > 2 * DOUBT_SPARE_BITS
