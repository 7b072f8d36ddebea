import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.errors import ModelError
from softleak.matching.problems import DifferentiableModel
from tests.unit.matching.nets import small, victims


@pytest.fixture
def case():
    model = small().double()
    inputs, labels, shares = victims(model, 1)
    own = DifferentiableModel.of(model, sl.Head.of(model), torch.double)
    return model, own, inputs[0].double(), labels[0].double(), shares[0]


def test_the_gradient_is_the_one_a_client_sends(case):
    _, own, x, y, share = case
    found = own.gradient(x, y / y.sum())
    assert found.keys() == share.keys()
    for name, sent in share.items():
        torch.testing.assert_close(found[name], sent, rtol=1e-5, atol=1e-9)


def test_plain_autograd_gives_the_same_gradient_and_feature(case):
    _, own, x, y, _ = case
    plain = DifferentiableModel(own.model, own.parameters, own.head, plain=True)
    for name, one in own.gradient(x, y).items():
        torch.testing.assert_close(plain.gradient(x, y)[name], one)
    (fast, feature), (slow, other) = (m.gradient_and_feature(x, y) for m in (own, plain))
    torch.testing.assert_close(feature, other)
    torch.testing.assert_close(fast["0.weight"], slow["0.weight"])


def test_the_feature_is_what_enters_the_head(case):
    model, own, x, y, _ = case
    _, feature = own.gradient_and_feature(x, y)
    torch.testing.assert_close(feature, model[:-1](x[None])[0])


def test_the_gradient_can_be_differentiated_by_the_input(case):
    _, own, x, y, _ = case

    def squared(x):
        return sum(g.square().sum() for g in own.gradient(x, y).values())

    way = torch.randn(x.shape, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    slope = torch.func.grad(squared)(x)
    measured = (squared(x + 1e-5 * way) - squared(x - 1e-5 * way)) / 2e-5
    assert float((slope * way).sum()) == pytest.approx(float(measured), rel=1e-5)


def test_a_parameter_that_is_not_used_has_a_gradient_of_zero():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.spare, self.head = nn.Linear(2, 2), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(x)

    model = Spare()
    for plain in (False, True):
        made = DifferentiableModel.of(model, sl.Head.of(model, "head"), torch.float32)
        own = DifferentiableModel(made.model, made.parameters, made.head, plain)
        assert not own.gradient(torch.ones(4), torch.eye(3)[0])["spare.weight"].any()


def test_the_copy_leaves_the_model_and_its_statistics_alone():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3)
    ).train()  # fmt: skip
    before = {name: value.clone() for name, value in model.state_dict().items()}
    own = DifferentiableModel.of(model, sl.Head.of(model), torch.double)
    own.gradient(torch.rand(1, 8, 8, dtype=torch.double), torch.eye(3, dtype=torch.double)[1])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert own.like.dtype == torch.double
    assert next(model.parameters()).dtype == torch.float32


def test_dropout_in_train_mode_is_refused():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(4, 2)).train()
    with pytest.raises(ModelError, match=r"1 \(Dropout\) is in train mode.*model\.eval\(\)"):
        DifferentiableModel.of(model, sl.Head.of(model), torch.float32)
