"""The head is what the attacks assume, or the model is refused: nothing is taken on trust."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import softleak as sl
from softleak.core.errors import HeadNotFound, ModelError
from softleak.core.head import find_head


class Stranger(nn.Module):
    """A small network whose head may be anything."""

    def __init__(self, head: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 16), nn.ReLU())
        self.head = head or nn.Linear(16, 6)

    def forward(self, x):
        return self.behind(self.head(self.body(x)))

    def behind(self, z):
        return z


class Tempered(Stranger):
    def behind(self, z):
        return z / 2


class LearnedScale(Stranger):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.7))

    def behind(self, z):
        return z * self.scale


class Adjusted(Stranger):
    """Logits adjusted by the classes' prior."""

    def behind(self, z):
        return z + torch.linspace(-1, 0, 6)


class Averaged(Stranger):
    """The mean of two heads, as a distilled DeiT has them."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(16, 6)

    def forward(self, x):
        h = self.body(x)
        return (self.head(h) + self.other(h)) / 2


class WideAndDeep(Stranger):
    """A second branch that is silent on an input of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(12, 6, bias=False)

    def forward(self, x):
        return self.head(self.body(x)) + self.wide(x)


class Twice(Stranger):
    """A head applied to the sample and to its mirror image, of which one answer is used."""

    def forward(self, x):
        h = self.body(x)
        self.head(h.flip(1))
        return self.head(h)


class Rescaling(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 1.5


class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1e-3 * torch.randn(self.out_features)


class Quantised(nn.Linear):
    """Quantisation-aware training: the weights are rounded, the gradient passes through."""

    def forward(self, x):
        rounded = (self.weight * 16).round() / 16
        return F.linear(x, self.weight + (rounded - self.weight).detach(), self.bias)


class Tied(Stranger):
    """The head's weight is used by the body as well, so its gradient is not the head's alone."""

    def forward(self, x):
        h = self.body(x)
        return self.head(h + (h @ self.head.weight.T) @ self.head.weight)


class Experts(Stranger):
    """The input decides which head answers."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(16, 6), nn.Linear(16, 6)])

    def forward(self, x):
        return self.heads[int(x.sum() > 0)](self.body(x))


def hooked(scale_of: str) -> nn.Module:
    model = Stranger()
    if scale_of == "forward":
        model.head.register_forward_hook(lambda module, inputs, output: output * 2)
    else:
        model.head.weight.register_hook(lambda gradient: gradient * 2)
    return model


STRANGERS = {
    "temperature": Tempered,
    "learned scale": LearnedScale,
    "prior": Adjusted,
    "averaged heads": Averaged,
    "wide and deep": WideAndDeep,
    "applied twice": Twice,
    "rescaling subclass": lambda: Stranger(Rescaling(16, 6)),
    "noisy subclass": lambda: Stranger(Noisy(16, 6)),
    "quantised subclass": lambda: Stranger(Quantised(16, 6)),
    "tied": Tied,
    "experts": Experts,
    "forward hook": lambda: hooked("forward"),
    "gradient hook": lambda: hooked("gradient"),
    "softmax": lambda: nn.Sequential(Stranger(), nn.Softmax(-1)),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_head_that_is_not_what_is_assumed_is_refused(name):
    torch.manual_seed(0)
    model = STRANGERS[name]()
    with pytest.raises(HeadNotFound):
        find_head(model, shape=(12,))
    for evidence in (True, False):
        share = sl.GradientShare({"head.weight": torch.ones(6, 16)}, (12,))
        with pytest.raises(HeadNotFound):
            sl.recover_label(model, share, evidence=evidence)


@pytest.mark.parametrize("zero", [False, True])
def test_a_plain_head_is_found_even_if_its_weights_are_zero(zero):
    model = Stranger()
    if zero:
        nn.init.zeros_(model.head.weight)
    assert find_head(model, shape=(12,)).name == "head"


def test_weight_norm_computes_the_same_layer():
    model = Stranger(nn.utils.parametrizations.weight_norm(nn.Linear(16, 6)))
    assert find_head(model, shape=(12,)).name == "head"


def test_nothing_of_the_model_is_changed():
    model = nn.Sequential(
        nn.Linear(12, 16), nn.BatchNorm1d(16).eval(), nn.Dropout(), nn.Linear(16, 6)
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    find_head(model, shape=(12,))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_model_that_cannot_be_run_is_not_taken_on_trust():
    class Unrunnable(Stranger):
        def forward(self, x):
            raise RuntimeError("give me tokens")

    with pytest.raises(ModelError, match="cannot be verified"):
        find_head(Unrunnable())
    share = sl.GradientShare({"head.weight": torch.ones(6, 16)})
    with pytest.raises(ModelError, match="vouch"):
        sl.recover_label(Unrunnable(), share, evidence=False)


def test_a_model_that_keeps_its_graph_between_runs_is_refused_in_plain_words():
    class Caching(Stranger):
        kept = None

        def forward(self, x):
            if self.kept is None:
                self.kept = self.body[0].weight.square().sum()
            return self.head(self.body(x) * self.kept)

    model = Caching()
    sl.capture(model, torch.randn(12), 1)
    with pytest.raises(ModelError, match="gradient cannot be computed"):
        sl.capture(model, torch.randn(12), 1)


class Averaged(nn.Module):
    def forward(self, x):
        return x.mean((-2, -1))


def test_a_try_with_an_input_of_another_shape_does_not_count_as_a_second_call():
    """A convolution takes (1, H, W) for an image without a batch, and the head follows it."""
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.SiLU(), Averaged(), nn.Linear(2, 20))
    assert find_head(model, shape=(1, 3, 4)).name == "3"
