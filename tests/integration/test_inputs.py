"""Inputs through the command line: the next method is tried, and no failure loses the label."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import softleak as sl
from softleak.audit import Truth
from softleak.matching import Adam, choose
from tests.integration.audits import audited, only

NORMALISE = ("--normalise", "0/1")
PATIENT = 120  # seconds: the search ends by its steps, however busy the machine is
STEPS = 300


class Few(nn.Module):
    """A chain with fewer equations than pixels: exact inversion does not determine the input."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 2, 3, 2, padding=1)
        self.head = nn.Linear(2 * 16, 10)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sigmoid(self.first(x)).flatten(1))


class Attending(nn.Module):
    """Fused attention, whose gradient has no derivative of its own on some devices."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 4, 4)
        self.all = nn.Linear(8, 24)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.all(self.patches(x).flatten(2).transpose(1, 2))
        parts = (part[:, None] for part in tokens.chunk(3, -1))
        return self.head(F.scaled_dot_product_attention(*parts)[:, 0].mean(1))


class Recurrent(nn.Module):
    """Rows of an image, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.GRU(8, 12, batch_first=True)
        self.head = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rows(x[:, 0])[0][:, -1])


class Deciding(nn.Module):
    """Control flow by data, which cannot be vectorised."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3)
        self.head = nn.Linear(6 * 36, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(self.first(x))
        return self.head((2 * x if x.sum().item() > 0 else x).flatten(1))


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, slope):
        if slope.requires_grad:
            raise RuntimeError("derivative of my backward is not implemented\nsee elsewhere")
        return slope * ctx.saved_tensors[0].cos()


class Stubborn(Deciding):
    """The author's own operation, whose gradient cannot be differentiated again."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(_Once.apply(self.first(x)).flatten(1))


def files(folder: Path, kind: type[nn.Module]) -> tuple[object, ...]:
    """An audit of one smooth image of 8 x 8."""
    torch.manual_seed(1)
    model = kind().eval()
    x = F.interpolate(torch.rand(1, 1, 3, 3), (8, 8), mode="bilinear", align_corners=True)[0]
    torch.save(model.state_dict(), folder / "weights.pt")
    sl.capture(model, x, 3).save(folder / "share.pt")
    Truth(torch.tensor(3), x).save(folder / "truth.pt")
    return (
        folder / "out", "--model", f"{__name__}:{kind.__name__}", "--weights",
        folder / "weights.pt", "--share", folder / "share.pt", *NORMALISE,
    )  # fmt: skip


@pytest.fixture
def _few_steps(monkeypatch):
    """A search of fewer steps than there is time for."""
    monkeypatch.setattr(choose, "Adam", partial(Adam, steps=STEPS))


@pytest.mark.usefixtures("_few_steps")
def test_a_chain_that_is_not_determined_is_matched_and_the_better_counts(tmp_path):
    update = files(tmp_path, Few)
    truth = ("--truth", tmp_path / "truth.pt")
    before = only(audited(*update, *truth, "--match-seconds", 0))
    assert before["input"]["method"] == "INVERSION"
    assert before["score"]["psnr"] < 20
    after = only(audited(*update, *truth, "--match-seconds", PATIENT, "--fail-on", "input", code=3))
    assert after["input"]["method"] == "MATCHING"
    assert after["score"]["psnr"] >= 20
    assert after["score"]["psnr"] > before["score"]["psnr"] + 3
    assert after["states"]["input"] == "leaked"


@pytest.mark.usefixtures("_few_steps")
def test_without_truth_a_matched_image_counts_if_two_starts_agree(tmp_path):
    report = only(audited(*files(tmp_path, Few), "--match-seconds", PATIENT))
    found = report["input"]
    agreed = found["agreement"] >= 20 and found["misfit"] <= 0.2
    assert found["leaked"] == agreed == (report["states"]["input"] == "leaked")
    assert agreed


@pytest.mark.parametrize("kind", [Attending, Recurrent, Deciding])
def test_models_that_are_hard_to_differentiate_twice_are_searched(tmp_path, kind):
    report = only(audited(*files(tmp_path, kind), "--match-seconds", 2))
    assert report["label"]["class_index"] == 3
    # Whether an image is proved within the time depends on the machine.
    assert report["input"]["method"] in ("MATCHING", "SOLVING")
    assert report["input"]["misfit"] < 1


def test_an_attack_that_fails_is_a_line_and_the_label_stays(tmp_path):
    update = files(tmp_path, Stubborn)
    report = only(audited(*update, "--match-seconds", 2, "--fail-on", "label", code=3))
    assert report["label"]["class_index"] == 3
    assert report["states"]["input"] == "not attacked"
    assert "matching could not be carried out" in report["input"]["message"]
    assert "\n" not in report["input"]["message"]
    audited(*update, "--match-seconds", 2, "--fail-on", "input", code=5)
