"""What the command line says of a gradient whose loss was stated, rightly or wrongly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import softleak as sl
from softleak.cli.exits import Exit
from tests.integration.audits import audited, only

HAS = [2, 4, 5]


def tagger() -> nn.Module:
    """Return a network of fourteen outputs, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 49, 14)
        ).eval()  # fmt: skip


@pytest.fixture
def sent(tmp_path):
    """Save the gradient of one sample under a loss, and return the arguments of its audit."""

    def save(y: Tensor, loss: str) -> list[object]:
        torch.manual_seed(3)
        file = tmp_path / "update.safetensors"
        sl.capture(tagger(), torch.rand(1, 16, 16), y, loss=loss).save(file)
        return [
            "--model", f"{__name__}:tagger", "--random-weights", "--share", file, "--kind",
            "gradient", "--input-shape", "1,16,16", "--labels-only",
        ]  # fmt: skip

    return save


def tags() -> Tensor:
    y = torch.zeros(14)
    y[HAS] = 1.0
    return y


def test_stated_tags_are_listed(sent, tmp_path):
    answer = audited(tmp_path / "out", *sent(tags(), "bce"), "--loss", "bce")
    label = only(answer)["label"]
    assert (label["status"], label["loss"], label["has"]) == ("UNIQUE", "bce", HAS)
    page = (tmp_path / "out" / "index.html").read_text()
    assert "has 3 of 14: class 2, class 4, class 5" in page


@pytest.mark.parametrize("stated", ["mse", "ce"])
def test_a_loss_that_the_numbers_contradict_ends_with_its_own_code(sent, tmp_path, stated):
    given = sent(tags(), "bce")
    answer = audited(tmp_path / "out", *given, "--loss", stated, code=Exit.UNATTACKED)
    report = only(answer)
    assert not report["fit"]["holds"]
    assert report["label"]["proved"] != "NOTHING"  # what the numbers show is said nevertheless


def test_targets_of_a_regression_are_numbers(sent, tmp_path):
    targets = torch.linspace(-2, 3, 14)
    answer = audited(tmp_path / "out", *sent(targets, "mse"), "--loss", "mse")
    label = only(answer)["label"]
    assert (label["status"], label["has"], label["loss"]) == ("AMBIGUOUS", None, "mse")
    assert torch.tensor(label["label"]).sub(targets).norm() < 1e-4 * targets.norm()
    assert "targets -2, " in (tmp_path / "out" / "index.html").read_text()
