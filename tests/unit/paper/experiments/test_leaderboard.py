from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.subject import Subject
from softleak.paper.leaderboard import (
    ATTACKS,
    DLG,
    IDLG_ATTACK,
    INVERTING_GRADIENTS,
    LEADERBOARD,
    LeaderboardCell,
)
from softleak.paper.networks import Shelf

SIZE = 2


def small() -> tuple[nn.Module, torch.Tensor, sl.GradientShare]:
    """A small smooth network, two inputs of different classes, and their share."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 24), nn.Sigmoid(), nn.Linear(24, 4)).eval()
    x = torch.randn(SIZE, 3, 2, 2)
    return model, x, sl.capture(model, x, torch.eye(4)[[1, 3]])


@pytest.mark.parametrize(
    ("attack", "far"), [(DLG, 0.3), (IDLG_ATTACK, 0.1), (INVERTING_GRADIENTS, 1.0)], ids=str
)
def test_the_attacks_of_the_field_find_a_small_batch(attack, far):
    model, x, share = small()
    inputs, labels = replace(attack, variation=0.0, evaluations=100)(
        Subject.of(model, (3, 2, 2)), share, SIZE
    )
    assert sorted(labels.argmax(1).tolist()) == [1, 3]
    assert inputs is not None
    off = torch.cdist(x.flatten(1), inputs.flatten(1)).amin(1) / x.flatten(1).norm(dim=1)
    assert float(off.max()) < far


def test_every_attack_meets_every_network_defence_and_size():
    assert len(LEADERBOARD.cells) == len({cell.name for cell in LEADERBOARD.cells})
    assert len(LEADERBOARD.cells) % len(ATTACKS) == 0
    for method, ending in LEADERBOARD.across.items():
        mine = [cell for cell in LEADERBOARD.cells if cell.name.endswith(ending)]
        assert len(mine) == len(LEADERBOARD.cells) // len(ATTACKS), method


def test_ours_is_scored_like_the_others():
    cell = LeaderboardCell("mlp ReLU", "no defence", 1, "softleak")
    (scores,) = cell.measured_together(cell.attacked(Shelf(None, None)), [0], 0)
    assert scores["PSNR"] > 100
    assert scores["class"] == scores["label"] == 1
