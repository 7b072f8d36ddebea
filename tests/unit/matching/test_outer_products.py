from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.subject import Subject
from softleak.matching import L2, Cosine, GivenLabel, Noise
from softleak.matching import problems as outer_products
from softleak.matching.problems import (
    DifferentiableModel,
    MatchingProblems,
    OuterProducts,
    factored,
    parts,
)
from softleak.matching.tasks import job_of, targets
from softleak.paper import models

LABEL = torch.tensor([0.7, 0.2, 0.1])


@pytest.fixture(autouse=True)
def _every_layer_counts_as_large(monkeypatch):
    monkeypatch.setattr(outer_products, "FEWEST_ENTRIES", 1)


def network(bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return models.mlp(8, (6, 5), 3, nn.Tanh, bias=bias).double().eval()


def both_ways(model, objective, plain=False):
    """The same problem, compared by outer products and entry by entry."""
    share = sl.capture(model, torch.linspace(-1, 1, 8).double(), LABEL.double())
    own = replace(DifferentiableModel.of(model, sl.Head.of(model), torch.double), plain=plain)
    job = job_of(Subject.of(model, (8,)), objective, share, None, GivenLabel(LABEL), Noise(0))
    names, outer = tuple(own.parameters), OuterProducts.of(own, (8,))
    factors = {name: factored([share[name]]) for name in outer.weights}
    whole = MatchingProblems(own, names, objective, (), (8,), targets([job], names, own))
    return outer, whole, replace(whole, outer=outer, targets=targets([job], names, own, factors))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("objective", [L2(), L2(alpha=3.0), Cosine(), Cosine(alpha=0.0)])
def test_distances_and_slopes_are_those_of_whole_gradients(objective, bias, plain):
    outer, whole, factors = both_ways(network(bias), objective, plain)
    assert outer.layers == ("features.0", "features.2", "classifier")
    at = torch.randn(1, 11, generator=torch.Generator().manual_seed(1)).double()
    for ours, theirs in zip(factors.evaluator()(at), whole.evaluator()(at), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    assert factors.misfits(at) == pytest.approx(whole.misfits(at))


def test_the_truth_has_no_distance():
    _, _, factors = both_ways(network(), L2())
    truth = torch.cat([torch.linspace(-1, 1, 8), torch.zeros(3)])[None].double()
    assert factors.misfits(truth)[0] < 1e-12


def test_parts_keep_lengths_and_angles():
    generator = torch.Generator().manual_seed(0)
    ours, delta, x = (torch.randn(n, generator=generator).double() for n in (9, 4, 5))
    theirs = torch.outer(delta, x)
    found = factored([theirs])
    assert found is not None
    a, b = parts(ours, found[0], 4)
    matrix = torch.outer(ours[:4], ours[4:])
    assert float(a @ b) == pytest.approx(float((matrix * theirs).sum()))
    assert float((a - b).norm()) == pytest.approx(float((matrix - theirs).norm()))
    assert float(b.norm()) == pytest.approx(float(theirs.norm()))


def test_what_is_no_outer_product_is_not_factored():
    assert factored([torch.eye(3)]) is None
    assert torch.equal(factored([torch.zeros(2, 3)]), torch.zeros(1, 6).double())


class Twice(nn.Module):
    """One layer that acts twice, another whose weight is used beside it, and a third."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = torch.tanh(self.first(torch.tanh(self.first(x))))
        return self.head(torch.tanh(self.second(x) + x @ self.second.weight))


class Beside(Twice):
    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.head(torch.tanh(self.second(x) + x @ self.second.weight))


@pytest.mark.parametrize(("model", "layers"), [(Twice, ()), (Beside, ("first", "head"))])
def test_layers_that_are_used_twice_are_compared_entry_by_entry(model, layers):
    torch.manual_seed(0)
    net = model().eval()
    own = DifferentiableModel.of(net, sl.Head.of(net), torch.float32)
    assert OuterProducts.of(own, (8,)).layers == layers


@pytest.mark.parametrize("objective", [L2(), Cosine()])
def test_a_reconstruction_is_the_same(objective, monkeypatch):
    model = network()
    share = sl.capture(model, torch.linspace(-1, 1, 8).double(), LABEL.double())

    def found():
        return sl.reconstruct(
            model, share, objective=objective, label=GivenLabel(LABEL), priors=[],
            optimiser=sl.matching.LBFGS(steps=2),
        ).input  # fmt: skip

    ours = found()
    monkeypatch.setattr(outer_products, "FEWEST_ENTRIES", 1 << 30)
    assert torch.allclose(ours, found(), atol=1e-6)
