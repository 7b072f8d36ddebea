"""Which networks can be walked back, and what is said of the others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import softleak as sl
from softleak.core.errors import ModelError
from softleak.paper import models


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(x + torch.tanh(self.body(x)))


def test_what_branches_is_refused_by_name():
    model = Branching()
    share = sl.capture(model, torch.randn(6), 1)
    recovery = sl.recover_label(model, share)
    with pytest.raises(ModelError, match=r"branches at .*add.*gradient matching"):
        sl.invert(model, share, recovery)


def test_layers_that_lose_information_are_refused_by_name():
    model = models.vgg().eval()
    share = sl.capture(model, torch.randn(3, 32, 32), 1)
    with pytest.raises(ModelError, match="MaxPool2d"):
        sl.invert(model, share, sl.recover_label(model, share))


class Written(nn.Module):
    """Layers called from a forward that says how."""

    def __init__(self, forward) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 12, 3, padding=1), nn.Linear(768, 5, bias=False)
        self.square, self.norm = nn.Linear(768, 768), nn.BatchNorm2d(2, track_running_stats=False)
        self.how = forward

    def forward(self, x):
        return self.how(self, x)


def test_sizes_and_a_log_softmax_are_no_branches():
    def forward(m, x):
        h = torch.tanh(m.conv(x))
        return torch.log_softmax(m.head(h.view(h.size(0), -1)), -1)

    torch.manual_seed(0)
    model, x = Written(forward).double().eval(), torch.randn(2, 8, 8).double()
    head = sl.Head.of(model, "head")
    share = sl.capture(model, x, 1)
    recovery = sl.recover_label(model, share, head=head)
    chain = sl.Chain.of(model, head, (2, 8, 8))
    inversion = sl.invert(model, share, recovery, chain=chain)
    assert float((inversion.input - x).abs().max()) < 1e-6


CALLED = {
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, alpha=0.7),
    "selu": torch.selu,
    "softsign": F.softsign,
    "sigmoid": lambda x: x.sigmoid(),
    "dropout": lambda x: F.dropout(torch.tanh(x), 0.2, training=False),
    "average": lambda x: torch.tanh(F.avg_pool2d(x, 1)),
}


@pytest.mark.parametrize("function", CALLED)
def test_layers_may_be_called_as_functions(function):
    torch.manual_seed(0)
    model = Written(lambda m, x: m.head(CALLED[function](m.conv(x)).flatten(1))).double().eval()
    x = torch.randn(2, 8, 8).double()
    head = sl.Head.of(model, "head")
    share = sl.capture(model, x, 1)
    inversion = sl.invert(model, share, sl.recover_label(model, share, head=head))
    assert float((inversion.input - x).abs().max()) < 1e-6


class Normalised(nn.Module):
    """A network that normalises its inputs itself, with a layer of its author's own class."""

    class Layer(nn.Linear):
        pass

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4, 0.6]).view(1, 2, 1, 1))
        self.conv, self.head = nn.Conv2d(2, 12, 3, padding=1), self.Layer(768, 5)

    def forward(self, x):
        h = torch.tanh(self.conv(2 * (x - self.mean) / 0.5 + 0.1))
        return self.head((1 - h).flatten(1))


def test_arithmetic_with_what_is_known_is_passed():
    torch.manual_seed(0)
    model, x = Normalised().double().eval(), torch.rand(2, 8, 8).double()
    share = sl.capture(model, x, 1)
    inversion = sl.invert(model, share, sl.recover_label(model, share))
    assert inversion.determined
    assert float((inversion.input - x).abs().max()) < 1e-6


REFUSED = {
    "getitem": lambda m, x: m.head(torch.tanh(m.conv(x[:, [1, 0]])).flatten(1)),
    "more than once": lambda m, x: m.head(m.square(m.square(torch.tanh(m.conv(x)).flatten(1)))),
    "BatchNorm2d": lambda m, x: m.head(torch.tanh(m.conv(m.norm(x))).flatten(1)),
    "gelu": lambda m, x: m.head(F.gelu(m.conv(x)).flatten(1)),
    "softplus": lambda m, x: m.head(F.softplus(m.conv(x), threshold=1.0).flatten(1)),
    "avg_pool2d": lambda m, x: m.head(
        F.avg_pool2d(torch.tanh(m.conv(x)), x.size(2) // 8).flatten(1)
    ),
    "dropout .*train mode": lambda m, x: m.head(F.dropout(torch.tanh(m.conv(x))).flatten(1)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_would_go_wrong_is_refused(reason):
    model = Written(REFUSED[reason]).eval()
    with pytest.raises(ModelError, match=rf"{reason}.*gradient matching"):
        sl.Chain.of(model, sl.Head.of(model, "head"), (2, 8, 8))


def test_padding_that_is_not_zeros_is_refused():
    model = nn.Sequential(
        nn.Conv2d(2, 12, 3, padding=1, padding_mode="circular"), nn.Tanh(), nn.Flatten(),
        nn.Linear(768, 5),
    )  # fmt: skip
    with pytest.raises(ModelError, match="circular"):
        sl.Chain.of(model, sl.Head.of(model), (2, 8, 8))


def test_a_shape_the_model_does_not_take_is_said():
    model = models.lenet().eval()
    with pytest.raises(ModelError, match=r"does not take one input of shape \(1, 32, 32\)"):
        sl.Chain.of(model, sl.Head.of(model), (1, 32, 32))
