from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.errors import ModelError
from softleak.labels.evidence.probes import Lattice, Pointwise
from softleak.labels.evidence.relation import HeadBias
from softleak.paper import models

ACTIVATIONS = {
    nn.Identity: "piecewise linear",
    nn.ReLU: "piecewise linear",
    nn.LeakyReLU: "piecewise linear",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.ELU: "ELU",
    nn.SELU: "ELU",
    nn.CELU: "ELU",
    nn.Softplus: "softplus",
    nn.Softsign: "softsign",
}


@pytest.mark.parametrize(("activation", "name"), ACTIVATIONS.items())
def test_activations_are_told_by_what_they_do(activation, name):
    (relation,) = sl.probe(models.mlp(20, activation=activation), (20,))
    assert isinstance(relation, Pointwise)
    assert relation.activation.name == name


@pytest.mark.parametrize("activation", [nn.GELU, nn.SiLU])
def test_activations_that_hide_their_derivative_give_no_evidence(activation):
    assert sl.probe(models.mlp(20, activation=activation), (20,)) == ()


class Pooled(nn.Module):
    """Convolution, channels last, flattened: the feature's entries run over channels fastest."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.head = nn.Linear(6 * 9, 5)

    def forward(self, x):
        return self.head(self.conv(x).relu().permute(0, 2, 3, 1).flatten(1))


def test_layouts_and_biases_are_found():
    found = {r.parameter: r for r in sl.probe(Pooled(), (1, 5, 5))}
    assert isinstance(found["head.bias"], HeadBias)
    relation = found["conv.bias"]
    assert isinstance(relation, Pointwise)
    assert relation.channels_last


@pytest.mark.parametrize(
    ("make", "positions"), [(models.resnet18_cifar, 16), (models.resnet20, 64)]
)
@pytest.mark.parametrize("training", [True, False])
def test_pooled_residual_networks_have_a_lattice(make, positions, training):
    model = make(classes=10).train(training)
    lattices = [r for r in sl.probe(model, (3, 32, 32)) if isinstance(r, Lattice)]
    assert [relation.positions for relation in lattices] == [positions]


def test_the_lattice_is_not_guessed_when_the_image_size_is():
    model = models.resnet18_cifar(classes=10).eval()  # takes images of any size
    assert not any(isinstance(r, Lattice) for r in sl.probe(model))


class Strided(nn.Module):
    """Images of 32 leave a map of one position, larger ones more."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 8, 8), nn.ReLU(), nn.Conv2d(8, 24, 4, 4), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(24, 10, bias=False)

    def forward(self, x):
        return self.head(self.body(x))


def test_nor_is_it_guessed_that_there_is_one_position():
    model = Strided()
    (relation,) = sl.probe(model, (3, 32, 32))
    assert isinstance(relation, Pointwise)
    assert sl.probe(model) == ()
    captured = sl.capture(model, torch.randn(3, 64, 64), 3)
    recovery = sl.recover_label(model, sl.GradientShare(captured.gradients))
    assert recovery.status is sl.Status.UNIQUE
    assert recovery.class_index == 3


def test_dropout_in_train_mode_is_a_gain():
    body = [nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10, bias=False)]
    model = nn.Sequential(*body).train()
    (relation,) = sl.probe(model, (20,))
    assert isinstance(relation, Pointwise)
    assert relation.coefficients[0] == pytest.approx(2.0, rel=1e-5)


def test_probing_changes_nothing():
    model = models.resnet18_cifar(classes=10).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    sl.probe(model, (3, 32, 32))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_of_unknown_input_asks_for_its_shape():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(x.reshape(len(x), 2, 6).sum(1))

    with pytest.raises(ModelError, match="pass input_shape"):
        sl.probe(Odd())
    assert sl.probe(Odd(), (12,))
