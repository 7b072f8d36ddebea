"""Matching of an update of several local steps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import softleak as sl
from softleak.core.errors import ModelError
from softleak.matching.unrolled import UnrolledMatching


@pytest.fixture(scope="module")
def subject():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 6, 3, 2, 1), nn.Tanh(), nn.Flatten(), nn.Linear(54, 5))
    return sl.Subject.of(model.eval(), (1, 6, 6))


def test_the_input_and_its_label_are_found(subject):
    x, y = torch.rand(1, 6, 6), torch.tensor([0.1, 0.7, 0.1, 0.05, 0.05])
    share = sl.Client(lr=0.05, steps=3, momentum=0.9).share(subject.model, x, y)
    found = UnrolledMatching(rounds=6)(subject, share)
    assert float((found.input - x).abs().max()) < 1e-2
    assert float((found.label - y).abs().sum()) < 1e-2
    assert found.misfit < 1e-3


class Attending(nn.Module):
    """Attention by torch's fused kernel, which cannot be differentiated twice."""

    def __init__(self):
        super().__init__()
        self.patch, self.qkv, self.head = nn.Conv2d(1, 8, 2, 2), nn.Linear(8, 24), nn.Linear(8, 5)

    def forward(self, x):
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens)[:, None].chunk(3, -1)
        return self.head(F.scaled_dot_product_attention(q, k, v)[:, 0].mean(1))


def test_networks_with_fused_attention_are_matched():
    torch.manual_seed(0)
    attending = sl.Subject.of(Attending().eval(), (1, 6, 6))
    share = sl.Client(lr=0.05, steps=2).share(attending.model, torch.rand(1, 6, 6), 2)
    assert UnrolledMatching(rounds=1, steps=3)(attending, share).misfit < 1


def test_time_ends_it_after_a_round(subject):
    share = sl.Client(lr=0.05, steps=3).share(subject.model, torch.rand(1, 6, 6), 2)
    quick = UnrolledMatching(steps=2, seconds=0.0)(subject, share)
    assert not quick.explained


def test_a_gradient_is_refused(subject):
    share = sl.capture(subject.model, torch.rand(1, 6, 6), 2)
    with pytest.raises(ModelError, match="local training"):
        UnrolledMatching()(subject, share)
