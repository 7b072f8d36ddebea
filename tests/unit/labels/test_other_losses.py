"""Labels under a binary cross-entropy or a squared error: factors, steps, statements and noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import softleak as sl
from softleak.core.loss import BinaryCrossEntropy, CrossEntropy
from softleak.core.results import Status

OUTPUTS = 14


def tagger(bias: bool = True, outputs: int = OUTPUTS, head_alone: bool = False) -> nn.Module:
    torch.manual_seed(outputs)
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, outputs, bias=bias)).double()
    if head_alone:
        model[0].requires_grad_(False)
    return model.eval()


def drawn(seed: int, smoothed: float = 0.0, outputs: int = OUTPUTS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, generator=generator, dtype=torch.double)
    y = (torch.rand(outputs, generator=generator) < 0.3).double()
    return x, y * (1 - 2 * smoothed) + smoothed


def off(found: sl.Recovery, y: Tensor) -> float:
    assert found.label is not None, found
    return float((found.label - y).abs().sum())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothed", [0.0, 0.1])
@pytest.mark.parametrize("factor", [0.02, 30.0])
def test_tags_are_read_from_the_head_alone_at_any_factor(bias, smoothed, factor):
    model, (x, y) = tagger(bias), drawn(1, smoothed)
    share = sl.capture(model, x, y, loss="bce").scaled(factor)
    found = sl.recover_label(model, share, loss="bce", evidence=False, scale="unknown")
    assert found.status is Status.UNIQUE
    assert off(found, y) < 1e-6
    assert found.scale == pytest.approx(factor, rel=1e-6)


@pytest.mark.parametrize("head_alone", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "recipe", [{"steps": 2}, {"steps": 5, "momentum": 0.9, "weight_decay": 1e-3}]
)
def test_tags_behind_several_steps(head_alone, bias, recipe):
    model, (x, y) = tagger(bias, head_alone=head_alone), drawn(2, 0.05)
    share = sl.Client(lr=0.05, loss="bce", **recipe).share(model, x, y)
    found = sl.recover_label(model, share, loss="bce")
    assert found.status is Status.UNIQUE
    assert off(found, y) < 1e-6
    wrong = replace(share, made_by=replace(share.made_by, steps=recipe["steps"] + 3))
    found = sl.recover_label(model, wrong, loss="bce")
    assert found.status is not Status.UNIQUE or off(found, y) < 1e-3


def test_targets_behind_several_steps_of_the_head():
    model, (x, _) = tagger(head_alone=True), drawn(3)
    y = torch.linspace(-3, 5, OUTPUTS).double()
    share = sl.Client(lr=0.05, steps=4, momentum=0.5, loss="mse").share(model, x, y)
    found = sl.recover_label(model, share, loss="mse")
    assert off(found, y) < 1e-6
    assert found.status is Status.AMBIGUOUS  # any residual means some targets


def test_steps_of_a_loss_that_is_not_undone_are_said():
    model, (x, _) = tagger(), drawn(4)
    weighted = CrossEntropy((1.0, 2.0) * 7)
    share = sl.Client(lr=0.05, steps=3, loss=weighted).share(model, x, 3)
    found = sl.recover_label(model, share, loss=weighted)
    assert found.label is None
    assert "not attempted" in found.message


def test_weights_of_labels_widen_no_certificate():
    weights = tuple(0.3 + 0.4 * i for i in range(OUTPUTS))
    model, (x, y), loss = tagger(False), drawn(5, 0.1), BinaryCrossEntropy(weights)
    found = sl.recover_label(
        model, sl.capture(model, x, y, loss=loss), loss=loss, evidence=False, scale="known"
    )
    assert found.status is Status.UNIQUE
    assert off(found, y) <= found.error


def test_a_label_of_an_open_factor_has_no_bound():
    model, (x, _) = tagger(), drawn(6)
    y = torch.linspace(0.1, 0.8, OUTPUTS).double()
    share = sl.capture(model, x, y, loss="bce").scaled(0.5)
    found = sl.recover_label(model, share, loss="bce", scale="unknown")
    assert found.status is Status.AMBIGUOUS
    assert found.error == float("inf")
