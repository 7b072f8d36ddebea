"""A unit on the wrong side of its activation's dip is found by its slope, and moved back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import softleak as sl
from softleak.core.subject import Subject
from softleak.matching import GaussNewton
from softleak.matching.gauss_newton.descent import DampedDescent, NormalSteps, Walk
from softleak.matching.gauss_newton.equations import BatchKnowledge
from softleak.matching.gauss_newton.escape import FoldedUnits, FoldEscape, explained
from softleak.matching.gauss_newton.metric import Metric
from softleak.matching.reconstruction import Stopping


def linearised_of(network, x, y):
    """Return the normal equations of a share, and the true unknowns."""
    share = sl.capture(network, x[0], y[0])
    subject = Subject.of(network, tuple(x.shape[1:]))
    model = GaussNewton(memory=1 << 28).model(subject, tuple(share), tuple(x.shape))
    equations = BatchKnowledge(y.double()).equations(model.exact, share, torch.float32)
    metric = Metric.of_images(model.exact.shape, 2.0)
    return NormalSteps(model, equations, metric), model.exact.pack(x.double(), y.double())


def perceptron_share(act):
    """Return the same of a perceptron with as many units as entries of its input."""
    torch.manual_seed(0)
    layers = nn.Linear(16, 16), act, nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)
    network = nn.Sequential(*layers)
    with torch.no_grad():
        network[0].weight.copy_(torch.linalg.qr(torch.randn(16, 16))[0])
        network[2].weight.mul_(3)
    return linearised_of(network, torch.randn(1, 16), torch.tensor([[0.4, 0.3, 0.2, 0.1]]))


@pytest.fixture(scope="module")
def folded():
    """Return the normal equations, the truth, and places with one unit each on the wrong side."""
    linearised, truth = perceptron_share(nn.GELU())
    units = FoldedUnits.of(linearised.equations.function, truth)
    away = units.twins() - units.entered
    chosen = ((away.abs() > 0.3) & (away.abs() < 3)).nonzero().flatten()
    moves = units.moves(chosen, 1e-2)
    places = [truth + move * away[unit] for unit, move in zip(chosen, moves, strict=True)]
    return linearised, truth, list(zip(chosen.tolist(), places, strict=True))


def ended(linearised, z):
    """Return a walk that ended at a place."""
    r = linearised.equations.residual(z)
    return Walk(z, r, (float(r.square().mean().sqrt()),), None, True, 1)


@pytest.mark.parametrize("act", [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish()], ids=repr)
def test_a_twin_gives_the_same_output_with_a_slope_of_the_other_sign(act):
    network = nn.Sequential(nn.Linear(6, 6), act, nn.Linear(6, 3))
    x = torch.linspace(-3, -0.2, 6)[None]
    with torch.no_grad():
        network[0].weight.copy_(torch.eye(6))
        network[0].bias.zero_()
    linearised, z = linearised_of(network, x, torch.tensor([[0.5, 0.3, 0.2]]))
    units = FoldedUnits.of(linearised.equations.function, z)
    twins = units.twins()
    assert torch.allclose(units.entered, x[0].double())
    assert torch.allclose(act(twins), act(units.entered), atol=1e-3)
    assert (units.slopes(twins) * units.slopes(units.entered) < 0).all()


def test_rows_change_with_a_slope_as_the_chain_rule_says():
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(5, 4), nn.SiLU(), nn.Linear(4, 3))
    x, y = torch.randn(1, 5), torch.tensor([[0.6, 0.3, 0.1]])
    linearised, z = linearised_of(network, x, y)
    units = FoldedUnits.of(linearised.equations.function, z)
    touched, found = units.tangents(torch.arange(4))
    assert touched.tolist() == list(range(5 * 4 + 4))  # the first layer's weight and bias
    with torch.no_grad():
        missed = (network(x).softmax(1) - y).double() @ network[2].weight.double()
    weight, bias = found[:, :20].view(4, 4, 5), found[:, 20:]
    expected = torch.diag(missed[0])
    assert torch.allclose(bias, expected, atol=1e-6)
    assert torch.allclose(weight, expected[:, :, None] * x[0].double(), atol=1e-6)


def test_a_move_moves_its_own_unit_and_hardly_any_other():
    torch.manual_seed(2)
    network = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 3))
    linearised, z = linearised_of(network, torch.randn(1, 4), torch.tensor([[0.6, 0.3, 0.1]]))
    function = linearised.equations.function
    units = FoldedUnits.of(function, z)
    moves = units.moves(torch.arange(4), 1e-9)
    changed = [FoldedUnits.of(function, z + move).entered - units.entered for move in moves]
    assert torch.allclose(torch.stack(changed), torch.eye(4, dtype=torch.double), atol=1e-4)


def test_the_unit_on_the_wrong_side_often_explains_most_of_the_misfit(folded):
    linearised, _, places = folded
    first = 0
    for unit, place in places:
        units = FoldedUnits.of(linearised.equations.function, place)
        change = units.slopes(units.twins()) - units.slopes(units.entered)
        touched, by_slope = units.tangents(torch.arange(len(change)))
        gains = explained(ended(linearised, place), linearised, touched, by_slope * change[:, None])
        first += int(gains.argmax()) == unit
    assert first > len(places) / 4  # by chance it would be one of sixteen


def test_a_walk_is_led_back_to_the_truth(folded):
    linearised, truth, ((_, place), *_) = folded
    walk = ended(linearised, place)
    found = FoldEscape()(DampedDescent(), walk, linearised, Stopping(60))
    assert found.misfits[0] == walk.misfits[0]
    assert found.misfits[-1] < 30
    assert found.steps > walk.steps
    assert torch.allclose(found.z, truth, atol=1e-3)


def test_a_walk_stays_where_no_activation_folds():
    linearised, truth = perceptron_share(nn.Tanh())
    walk = ended(linearised, truth + 0.1)
    assert FoldedUnits.of(linearised.equations.function, truth) is None
    assert FoldEscape()(DampedDescent(), walk, linearised, Stopping(60)) is walk


def test_a_move_that_does_not_help_is_given_up(folded):
    linearised, _, ((_, place), *_) = folded
    walk = ended(linearised, place)
    assert FoldEscape(gain=0.0)(DampedDescent(), walk, linearised, Stopping(200)) is walk


def test_what_is_stuck_and_hopeless_is_not_tried_in_float64(folded):
    linearised, truth, _ = folded
    descent = DampedDescent(slow=0.0, patience=1, precise=0.0, hopeless=0.0)  # stuck at once
    walk = descent(linearised, truth + 0.1, Stopping(60))
    assert walk.stuck
    assert walk.normal is None
    assert walk.steps == 1


def test_a_walk_stays_if_no_unit_can_be_moved():
    linearised, truth = perceptron_share(nn.GELU())
    walk = ended(linearised, truth + 0.1)
    assert FoldEscape(nearest=1e3)(DampedDescent(), walk, linearised, Stopping(60)) is walk
