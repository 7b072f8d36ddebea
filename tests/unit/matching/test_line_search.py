import pytest
import torch

from softleak.matching.optimisers import DECREASE, LBFGS, MOST_TRIALS, SLOPE_LEFT


def searched(loss, start=0.0):
    """The step at which a search along the steepest descent of one unknown ends, or None."""

    def evaluate(x):
        x = x.detach().requires_grad_()
        value = loss(x[:, 0])
        return value.detach(), torch.autograd.grad(value.sum(), x)[0]

    x = torch.full((1, 1), start, dtype=torch.double)
    state = LBFGS()._begin(x, *evaluate(x))
    before, down = float(state.loss), float(state.down)
    for _ in range(MOST_TRIALS):
        step = float(state.step)
        value, slope = evaluate(state.x + state.step[:, None] * state.direction)
        taken, lost = state.judge(value, slope)
        if bool(taken) or bool(lost):
            after = float((slope * state.direction).sum())
            return (step, float(value) - before, after, down) if bool(taken) else None
    return None


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("centre", [-4.0, 0.5, 30.0])
def test_an_accepted_step_keeps_the_weak_wolfe_conditions(scale, centre):
    step, change, after, down = searched(lambda x: scale * (x - centre).square())
    assert step > 0
    assert change <= DECREASE * step * down < 0
    assert after >= SLOPE_LEFT * down


def test_a_wall_of_nan_is_stepped_back_from():
    def walled(x):
        return torch.where(x < 0.25, (x - 0.2).square(), torch.nan)

    step, change, _, _ = searched(walled, -8.0)
    assert step > 0
    assert change < 0


def test_where_nothing_is_gained_the_search_gives_up():
    assert searched(lambda x: torch.where(x == 0, x - 1, x.abs() + 1)) is None
