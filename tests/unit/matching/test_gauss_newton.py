"""Gauss–Newton on the share: what it finds is exact, and what it proves is right."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import softleak as sl
from benchmarks.gauss_newton_wrong import (
    SHAPE,
    SmallResidual,
    attempt_tries,
    blurred,
)
from softleak.core.errors import OptionError
from softleak.core.results import Status
from softleak.core.subject import Subject
from softleak.matching import Adam, GaussNewton, GivenLabel, Image
from softleak.matching.gauss_newton.descent import NormalEquations
from softleak.matching.gauss_newton.equations import BatchFunction, BatchKnowledge
from softleak.matching.gauss_newton.products import NewtonModel, TangentProducts

FAST = GaussNewton(memory=1 << 28)


def network(act=nn.SiLU, **settings):
    torch.manual_seed(0)
    model = SmallResidual(act, **settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
        for _ in range(20):
            model.train()(torch.randn(32, *SHAPE))
    return model.eval()


class Absolute(nn.Module):
    """A unit that switches, and is not one of those whose masks are solved for."""

    def forward(self, x):
        return x.abs()


def sample(seed=0, batch=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, *SHAPE, generator=generator)
    return x, torch.randn(batch, 4, generator=generator).softmax(1)


@pytest.fixture(scope="module")
def smooth():
    return network()


@pytest.fixture(scope="module")
def subject(smooth):
    return Subject.of(smooth, SHAPE)


def equations_of(subject, x, y, **known):
    share = sl.capture(subject.model, x, y)
    model = FAST.model(subject, tuple(share), tuple(x.shape))
    return model, BatchKnowledge(y.double(), **known).equations(model.exact, share, torch.float32)


def test_the_rows_are_what_the_client_sends(subject):
    x, y = sample(batch=2)
    model, equations = equations_of(subject, x, y)
    r = equations.residual(model.exact.pack(x.double(), y.double()))
    # At the truth every row differs by some roundings of float32, and by no more.
    assert float(r.square().mean().sqrt()) < 30
    assert set(equations.by_group(r)) == {*subject.parameters, "(label)", "(sum)"}


def test_the_recorded_jacobian_is_that_of_differences(subject):
    x, y = sample(batch=2)
    model, equations = equations_of(subject, x, y)
    z = model.exact.pack(x.double(), y.double())
    jacobian = model.products(torch.float64).jacobian(z, equations.weight, None)
    v = torch.randn(len(z), generator=torch.Generator().manual_seed(1), dtype=torch.double)
    step = 1e-5
    change = (equations.residual(z + step * v) - equations.residual(z - step * v)) / (2 * step)
    assert torch.allclose(v @ jacobian, change, rtol=1e-5, atol=1e-5 * float(change.abs().max()))


def test_chunks_within_a_budget_give_the_same_jacobian(subject):
    x, y = sample()
    model, equations = equations_of(subject, x, y)
    z = model.exact.pack(x.double(), y.double())
    few = TangentProducts(model.exact, memory=1 << 20)
    assert few.chunk < model.products(torch.float64).chunk
    kept = torch.arange(0, len(equations.weight), 7)
    whole = model.products(torch.float64).jacobian(z, equations.weight, None)
    part = few.jacobian(z, equations.weight, kept)
    assert torch.allclose(part, whole[:, kept], rtol=1e-9, atol=1e-9 * float(whole.abs().max()))


def test_the_undamped_step_solves_linear_equations_at_once():
    generator = torch.Generator().manual_seed(0)
    jacobian = torch.randn(7, 30, generator=generator, dtype=torch.double)
    truth = torch.randn(7, generator=generator, dtype=torch.double)
    found = NormalEquations.of(jacobian, truth @ jacobian, blocks=3).step(0.0)
    assert found is not None
    step, promised = found
    assert torch.allclose(step, truth)
    assert math.isclose(promised, float((truth @ jacobian).square().sum()), rel_tol=1e-9)


def test_an_image_is_proved_from_grey_with_the_error_it_predicts(smooth):
    x, y = sample(1)
    share = sl.capture(smooth, x[0], y[0])
    found = sl.reconstruct(
        smooth, share, sl.recover_label(smooth, share), optimiser=FAST, restarts=3
    )
    assert found.status is Status.PROVED, found.message
    error = float((found.input - x[0]).square().mean().sqrt())
    told = float(found.error.square().mean().sqrt())
    assert error < 1e-4
    assert 1 / 4 < error / told < 4
    assert found.certificate.undetermined == 0
    assert found.psnr_predicted > 80
    assert found.certificate.misfits[-1] < 1e-4 * found.certificate.misfits[0]
    assert torch.allclose(found.label.double(), y[0].double(), atol=1e-5)


class HoldsLogits(nn.Module):
    """A model that returns an object, as those of Hugging Face do."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, pixel_values):
        return SimpleNamespace(logits=self.inner(pixel_values))


def test_a_model_that_returns_an_object_with_logits_is_solved_for(smooth):
    model, (x, y) = HoldsLogits(smooth), sample()
    share = sl.capture(model, x[0], y[0])
    recovery = sl.recover_label(model, share)
    found = sl.reconstruct(model, share, recovery, optimiser=FAST, restarts=2)
    assert found.status is Status.PROVED, found.message
    assert float((found.input - x[0]).abs().max()) < 1e-3


def test_a_batch_is_proved_as_a_whole(smooth):
    x, y = sample(5, batch=2)
    share = sl.capture(smooth, x, y)
    label = GivenLabel(y.double())
    found = sl.reconstruct(smooth, share, label=label, optimiser=FAST, restarts=3)
    assert found.proved, found.message
    assert found.input.shape == x.shape
    assert float((found.input - x).abs().max()) < 1e-3


def test_a_polish_replaces_what_it_proves_and_leaves_the_rest(smooth):
    x, y = sample(3)
    share = sl.capture(smooth, x[0], y[0])
    recovery = sl.recover_label(smooth, share)
    near = Image(x[0] + 0.01 * torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)))
    short = Adam(steps=2, lr=1e-4)
    plain = sl.reconstruct(smooth, share, recovery, start=near, optimiser=short)
    polished = sl.reconstruct(smooth, share, recovery, start=near, optimiser=short, polish=FAST)
    assert not plain.proved
    assert polished.proved
    rough = network(Absolute)
    share = sl.capture(rough, x[0], y[0])
    recovery = sl.recover_label(rough, share)
    before = sl.reconstruct(rough, share, recovery, start=near, optimiser=short)
    after = sl.reconstruct(rough, share, recovery, start=near, optimiser=short, polish=FAST)
    assert after.status is before.status
    assert torch.equal(after.input, before.input)


@pytest.mark.parametrize("start", ["truth", "noise"])
def test_a_network_that_switches_by_other_operations_is_never_proved(start):
    rough = network(Absolute)
    x, y = sample(3)
    known = BatchKnowledge(y.double())
    first = x if start == "truth" else 0.05 * torch.randn(x.shape)
    subject = Subject.of(rough, SHAPE)
    found = FAST.solve(subject, sl.capture(rough, x[0], y[0]), known, first.double())
    assert not found.certificate.proved
    assert "abs" in FAST.roughness(subject, SHAPE)


def test_bends_tell_a_kink_that_no_operation_names():
    class Hidden(nn.Module):
        def forward(self, x):
            return (x + (x * x).sqrt()) / 2

    assert "power" in FAST.roughness(Subject.of(network(Hidden), SHAPE), SHAPE)
    assert not FAST.roughness(Subject.of(network(nn.GELU), SHAPE), SHAPE)


def test_directions_that_the_share_does_not_determine_are_counted():
    torch.manual_seed(0)
    model = blurred().eval()
    x, y = sample(1)
    share = sl.capture(model, x[0], y[0])
    found = FAST.solve(Subject.of(model, SHAPE), share, BatchKnowledge(y.double()), x.double())
    # Of 72 pixels the network sees 18 means.
    assert not found.certificate.proved
    assert found.certificate.undetermined == 72 - 18
    assert "does not determine 54 of 72 directions" in found.certificate.reason


def test_a_network_that_does_not_see_where_an_image_begins_proves_nothing():
    model = network(nn.SiLU, padding="circular")
    x, y = sample(2)
    share = sl.capture(model, x[0], y[0])
    shifted = x.roll(1, 3).double()
    found = FAST.solve(Subject.of(model, SHAPE), share, BatchKnowledge(y.double()), shifted)
    assert found.misfit < 1e-5  # the shifted image sends the same
    assert not found.certificate.proved


def test_more_unknowns_than_a_normal_matrix_holds_are_refused(smooth):
    x, y = sample(3)
    share = sl.capture(smooth, x[0], y[0])
    few = GaussNewton(dense=10, memory=1 << 28)
    found = sl.reconstruct(smooth, share, sl.recover_label(smooth, share), optimiser=few)
    assert found.input is None
    assert "too many" in found.message


def test_rows_are_drawn_where_a_jacobian_does_not_fit(subject):
    names = tuple(subject.parameters)
    model = NewtonModel.of(subject, names, (1, *SHAPE), memory=16 * 76 * 1000)
    kept = model.kept()
    assert kept is not None
    assert len(kept) <= 1000
    assert isinstance(model.exact, BatchFunction)
    assert len(kept.unique()) == len(kept)


def test_wrong_images_are_not_proved():
    found = list(attempt_tries(10, seed=11, names=["SiLU", "blurred"]))
    assert not [one for one in found if one.wrong]
    assert any(one.proved for one in found)


@pytest.mark.slow
def test_wrong_images_are_not_proved_in_many_tries():
    found = [one for seed in range(3) for one in attempt_tries(70, seed)]
    proofs = [one for one in found if one.proved]
    assert not [one for one in found if one.wrong]
    assert len(proofs) > 20
    assert sum(1 / 3 <= one.ratio <= 3 for one in proofs) >= 0.9 * len(proofs)


def test_no_unknowns_are_refused():
    with pytest.raises(OptionError, match="positive"):
        GaussNewton(dense=0)
