"""Gradients are matched under the loss that the label was recovered with."""

import pytest
import torch
from torch import Tensor, nn

import softleak as sl
from softleak.core.loss import BinaryCrossEntropy, Loss, MeanSquaredError
from softleak.core.subject import Subject
from softleak.matching.gauss_newton.method import GaussNewton
from softleak.matching.problems import DifferentiableModel, loss_of


class Poisson(Loss):
    """Counts, a loss of somebody else."""

    name, least = "poisson", 0.0

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return (logits.exp() - targets * logits).sum(-1).mean() * self.slope(logits.shape[-1])

    def predict(self, z: Tensor) -> Tensor:
        return z.exp()


LOSSES = (BinaryCrossEntropy(), BinaryCrossEntropy((2.0, 1.0, 0.5)), MeanSquaredError(), Poisson())


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).double().eval()


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_gradient_that_is_matched_is_the_one_that_is_sent(loss):
    model, x, y = network(), torch.randn(6).double(), torch.tensor([1.0, 0.0, 1.0]).double()
    subject = Subject.of(model, (6,)).given(loss_of, loss)
    own = DifferentiableModel.of(model, subject.head, torch.double, subject.once(loss_of))
    sent = sl.capture(model, x, y, loss=loss)
    for name, found in own.gradient(x, y).items():
        assert torch.allclose(found, sent[name], atol=1e-12)


@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_an_input_is_found_again_under_its_loss(loss):
    model, x, y = network(), torch.rand(6).double(), torch.tensor([1.0, 0.0, 1.0]).double()
    share = sl.capture(model, x, y, loss=loss)
    label = sl.recover_label(model, share, loss=loss)
    found = sl.reconstruct(model, share, label, optimiser=GaussNewton())
    assert found.status is sl.Status.PROVED
    assert float((found.input - x).abs().max()) < 1e-4


def test_shares_of_different_losses_are_not_matched_together():
    model, x = network(), torch.rand(6).double()
    shares = [sl.capture(model, x, torch.ones(3), loss=one) for one in ("bce", "mse")]
    found = [
        sl.recover_label(model, share, loss=one)
        for share, one in zip(shares, ("bce", "mse"), strict=True)
    ]
    with pytest.raises(sl.SoftleakError, match="different losses"):
        sl.reconstruct_many(model, shares, found)
