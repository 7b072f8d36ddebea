"""What no method can tell: two labels whose gradients agree to the last bits of float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import softleak as sl
from softleak.paper import data

APART = 1e-6  # of the scalar


def gradient(W: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return (torch.softmax(W @ x, 0) - y)[:, None] * x


def saturated() -> tuple[Tensor, Tensor, Tensor]:
    """A head and a feature whose softmax is one-hot to about 1e-13, and a smoothed label."""
    torch.manual_seed(0)
    W = torch.randn(10, 64, dtype=torch.double)
    x = torch.rand(64, dtype=torch.double)
    logits = W @ x
    W[int(logits.argmax())] += (30 - logits.topk(2).values.diff().abs()) * x / (x @ x)
    return W, x, data.smooth(int((W @ x).argmax()), 10, 0.3).double()


def test_smoothed_labels_of_a_saturated_softmax_are_apart_by_more_than_their_gradients():
    W, x, y = saturated()
    G = gradient(W, x, y)
    other = data.smooth(int(y.argmax()), 10, 0.3 * (1 + APART)).double()
    G_other = gradient(W, x / (1 + APART), other)
    assert float((y - other).abs().sum()) > 1e-7  # five orders above 1e-12
    roundings = (G - G_other).abs() / (torch.finfo(torch.double).eps * G.abs())
    assert float(roundings.max()) < 4  # and the gradient hardly has the bits to say which


def test_the_certificate_knows_it():
    W, x, y = saturated()
    head = nn.Linear(64, 10, bias=False).double()
    head.weight.data.copy_(W)
    share = sl.GradientShare({"weight": gradient(W, x, y)}, (64,))
    recovery = sl.recover_label(head, share, family=sl.Smoothed(), evidence=False)
    assert recovery.label is not None
    assert recovery.error > APART / 10
    assert float((recovery.label - y).abs().sum()) <= recovery.error
