"""All inputs of a batch, matched together from what was recovered of each sample."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.audit.metrics import paired_psnr
from softleak.core.errors import OptionError
from softleak.core.results import Status
from softleak.matching import L2, LBFGS, GaussNewton, GivenLabel, Image

SIZE, CLASSES = 2, 8
FEATURES = L2(alpha=0.0, beta=2.0)
LONG = LBFGS(steps=4)
SHORT = LBFGS(steps=1, inner=5)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 12, 3, stride=2, padding=1),
        nn.Tanh(), nn.Flatten(), nn.Linear(108, CLASSES),
    )  # fmt: skip
    with torch.no_grad():
        net[-1].weight.mul_(4.0)
    return net.eval()


@pytest.fixture(scope="module")
def victim(model):
    """Inputs, smoothed labels, their share, and what was recovered from it."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(SIZE, 1, 6, 6, generator=generator)
    y = 0.9 * torch.eye(CLASSES)[[2, 5]] + 0.1 / CLASSES
    share = sl.capture(model, x, y)
    found = sl.recover_batch(model, share, size=SIZE, family=sl.Smoothed())
    assert found.status is sl.Status.UNIQUE
    return x, y, share, found


def ordered(x, y, found):
    """The inputs in the order of the samples that were found."""
    labels = torch.stack([one.label for one in found.samples])
    return x[torch.cdist(labels, y.double(), p=1).argmin(1)]


def test_all_inputs_are_found_each_with_its_own_label(model, victim):
    x, y, share, recovery = victim
    found = sl.reconstruct(
        model, share, recovery, objective=FEATURES, optimiser=LONG, priors=(), dtype=torch.double
    )
    assert found.input.shape == x.shape
    assert found.label.shape == y.shape
    assert min(paired_psnr(found.input, x)) > 30
    off = (found.input - ordered(x, y, recovery)).square().flatten(1).mean(1).sqrt()
    assert float(off.max()) < 0.05  # the order is that of the recovery


@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_at_the_truth_nothing_remains(model, victim, factor):
    x, y, share, _ = victim
    share = share.scaled(factor)
    scale = None if factor == 1.0 else "unknown"
    recovery = sl.recover_batch(model, share, size=SIZE, family=sl.Smoothed(), scale=scale)
    start = Image(ordered(x, y, recovery))
    found = sl.reconstruct(model, share, recovery, start=start, optimiser=SHORT)
    assert found.misfit < 1e-4
    assert torch.allclose(found.input, start.input, atol=1e-2)


def test_a_batch_norm_in_train_mode_sees_the_whole_batch(victim):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Flatten(), nn.Linear(128, CLASSES)
    ).train()
    x, y, *_ = victim
    share = sl.capture(net, x, y)
    given = {"label": GivenLabel(y), "optimiser": SHORT, "start": Image(x)}
    assert sl.reconstruct(net, share, **given).misfit < 1e-4


def test_a_sample_that_was_not_found_has_a_free_label(model, victim):
    x, y, share, recovery = victim
    part = replace(recovery, samples=recovery.samples[:1], status=sl.Status.AMBIGUOUS)
    found = sl.reconstruct(
        model, share, part, objective=FEATURES, optimiser=LONG, priors=(), dtype=torch.double
    )
    assert found.input.shape == x.shape
    assert torch.equal(found.label[0], part.samples[0].label)
    missing = y.double()[(y.double() - found.label[0]).abs().sum(1).argmax()]
    assert int(found.label[1].argmax()) == int(missing.argmax())
    none = replace(recovery, samples=())
    assert sl.reconstruct(model, share, none).status is Status.NO_LABEL


def test_a_batch_is_solved_and_proved(model, victim):
    x, y, share, recovery = victim
    found = sl.reconstruct(model, share, recovery, optimiser=GaussNewton(), restarts=2)
    assert found.proved, found.message
    assert float((found.input - ordered(x, y, recovery)).abs().max()) < 1e-3
    assert found.error.shape == x.shape


def test_a_start_or_a_label_of_another_size_is_refused(model, victim):
    x, y, share, recovery = victim
    one = sl.reconstruct(model, share, recovery, start=Image(x[0]))
    assert one.status is Status.UNFIT
    assert "expected a start of shape" in one.message
    other = sl.reconstruct(model, share, label=GivenLabel(y[None]))
    assert "(B, 8)" in other.message
    with pytest.raises(OptionError, match="one for each"):
        sl.reconstruct(model, share, recovery, label=[GivenLabel(y)] * 2)
