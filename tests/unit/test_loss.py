"""Losses as clients minimise them: their gradients are torch's, and their residuals give labels."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import softleak as sl
from softleak.core.errors import LabelError, OptionError
from softleak.core.loss import (
    LOSSES as NAMED,
)
from softleak.core.loss import (
    BinaryCrossEntropy,
    CrossEntropy,
    Loss,
    MeanSquaredError,
    named_loss,
)
from softleak.core.vocabulary import LOSS_NAMES

OUTPUTS = 5
WEIGHTS = (0.5, 2.0, 1.0, 3.0, 0.7)
LOSSES = (
    CrossEntropy(), CrossEntropy(WEIGHTS), BinaryCrossEntropy(), BinaryCrossEntropy(WEIGHTS),
    BinaryCrossEntropy(reduction="sum"), MeanSquaredError(), MeanSquaredError(reduction="sum"),
)  # fmt: skip


def network(outputs: int = OUTPUTS, *, bias: bool = True) -> nn.Module:
    torch.manual_seed(outputs)
    return nn.Sequential(
        nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, outputs, bias=bias)
    ).double().eval()  # fmt: skip


def label_for(loss: Loss, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(OUTPUTS, generator=generator, dtype=torch.double)
    if loss.balanced:
        return drawn / drawn.sum()
    return drawn if loss.most == 1 else 3 * drawn - 1


def test_the_losses_known_by_name_are_those_that_options_offer():
    assert tuple(NAMED) == LOSS_NAMES


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_the_residual_is_the_gradient_and_means_the_label(loss: Loss) -> None:
    for seed in range(5):
        y = label_for(loss, seed)
        z = torch.randn(OUTPUTS, dtype=torch.double, requires_grad=True)
        (delta,) = torch.autograd.grad(loss(z[None], y[None]), z)
        assert torch.allclose(loss.residual(z.detach(), y), delta, atol=1e-14)
        assert torch.allclose(loss.label(z.detach(), delta), y, atol=1e-12)
        if loss.balanced:
            assert abs(float(delta.sum())) < 1e-12


@pytest.mark.parametrize(
    ("loss", "own"),
    [
        ("bce", lambda z, y: F.binary_cross_entropy_with_logits(z, y)),
        ("mse", lambda z, y: F.mse_loss(z, y)),
        (BinaryCrossEntropy(WEIGHTS),
         lambda z, y: F.binary_cross_entropy_with_logits(z, y, pos_weight=z.new_tensor(WEIGHTS))),
        (CrossEntropy(WEIGHTS),
         lambda z, y: F.cross_entropy(z, y.argmax(1), weight=z.new_tensor(WEIGHTS))),
    ],
    ids=["bce", "mse", "pos_weight", "class weights"],
)  # fmt: skip
def test_capture_is_what_torch_computes(loss, own) -> None:
    model = network()
    x = torch.randn(3, 12, dtype=torch.double)
    y = F.one_hot(torch.tensor([0, 3, 1]), OUTPUTS).double()
    grads = torch.autograd.grad(own(model(x), y), list(model.parameters()))
    share = sl.capture(model, x, y, loss=loss)
    for found, true in zip(share.values(), grads, strict=True):
        assert torch.allclose(found, true, atol=1e-14)


def test_one_output_takes_numbers() -> None:
    model, x = network(1), torch.randn(4, 12, dtype=torch.double)
    y = torch.tensor([0.0, 1.0, 1.0, 0.0])
    share = sl.capture(model, x, y, loss="bce")
    own = F.binary_cross_entropy_with_logits(model(x)[:, 0], y.double())
    grads = torch.autograd.grad(own, list(model.parameters()))
    assert all(torch.allclose(a, b, atol=1e-14) for a, b in zip(share.values(), grads, strict=True))
    one = sl.recover_label(model, sl.capture(model, x[0], 1, loss="bce"), loss="bce")
    assert one.status is sl.Status.UNIQUE
    assert one.label is not None
    assert one.label.tolist() == [1.0]


def test_what_no_loss_takes_is_refused() -> None:
    model, x = network(), torch.randn(12, dtype=torch.double)
    with pytest.raises(LabelError, match="entry for each of 5 outputs"):
        sl.capture(model, x, 3, loss="bce")
    with pytest.raises(LabelError, match="from 0 to 1"):
        sl.capture(model, x, [0.0, 1.5, 0.0, 0.0, 0.0], loss="bce")
    with pytest.raises(OptionError, match="ce, bce, mse"):
        named_loss("dice")
    with pytest.raises(OptionError, match="positive weight"):
        BinaryCrossEntropy((1.0, -1.0))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_tags_are_read_with_their_loss(seed: int, bias: bool) -> None:
    torch.manual_seed(seed)
    model = network(14, bias=bias)
    x, y = torch.randn(12, dtype=torch.double), (torch.rand(14) < 0.3).double()
    share = sl.capture(model, x, y, loss="bce")
    for stated in ("bce", None):
        found = sl.recover_label(model, share, loss=stated)
        assert found.status is sl.Status.UNIQUE
        assert found.label is not None
        assert float((found.label - y).abs().sum()) < 1e-6
        assert found.loss.name == "bce"


def test_weights_that_are_stated_are_read() -> None:
    model = network(5)
    x = torch.randn(12, dtype=torch.double)
    for loss, y in (
        (BinaryCrossEntropy(WEIGHTS), torch.tensor([1.0, 0, 1, 0, 0])),
        (CrossEntropy(WEIGHTS), torch.tensor([0.1, 0.1, 0.6, 0.1, 0.1])),
    ):
        share = sl.capture(model, x, y, loss=loss)
        found = sl.recover_label(model, share, loss=loss)
        assert found.label is not None
        assert float((found.label - y).abs().sum()) < 1e-6


def test_regression_targets_follow_from_the_bias_alone() -> None:
    model = network()
    x, y = torch.randn(12, dtype=torch.double), 10 * torch.randn(OUTPUTS, dtype=torch.double)
    share = sl.capture(model, x, y, loss="mse")
    found = sl.recover_label(model, share, loss="mse")
    assert found.status is sl.Status.AMBIGUOUS  # a residual of any other loss would read so, too
    assert found.label is not None
    assert float((found.label - y).norm()) < 1e-6 * float(y.norm())
    alone = sl.recover_label(model, share, loss="mse", evidence=False)
    assert alone.status is sl.Status.AMBIGUOUS


@pytest.mark.parametrize(("true", "stated"), [("bce", "mse"), ("bce", "ce"), ("ce", "bce")])
def test_a_wrong_loss_is_contradicted(true: str, stated: str) -> None:
    model, x = network(14), torch.randn(12, dtype=torch.double)
    y = F.one_hot(torch.tensor(3), 14).double()
    if true == "bce":
        y[7] = 1.0
    share = sl.capture(model, x, y, loss=true)
    found = sl.recover_label(model, share, loss=stated)
    assert not found.fit.holds
    right = found.label is not None and float((found.label - y).abs().sum()) < 1e-6
    assert right or found.status is not sl.Status.UNIQUE


class Poisson(Loss):
    """Counts, as ``torch.nn.PoissonNLLLoss`` takes them."""

    name = "poisson"
    least = 0.0

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        terms = logits.exp() - targets * logits
        return terms.sum(-1).mean() * self.slope(logits.shape[-1])

    def predict(self, z: Tensor) -> Tensor:
        return z.exp()


def test_a_loss_of_somebody_else_is_read_like_the_others() -> None:
    model, loss = network(), Poisson()
    x, y = torch.randn(12, dtype=torch.double), torch.tensor([0.0, 3, 1, 7, 2]).double()
    share = sl.capture(model, x, y, loss=loss)
    found = sl.recover_label(model, share, loss=loss)
    assert found.label is not None
    assert float((found.label - y).abs().sum()) < 1e-6
