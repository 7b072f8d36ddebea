import pytest
import torch

from softleak.core.results import Status
from softleak.matching.optimisers import LBFGS
from softleak.matching.reconstruction import Stopping
from tests.unit.matching.problems import Known, bowl, kinked, valley


def minimise(problems, start, **options):
    return LBFGS(**options).minimise(problems, start, Stopping(1))


@pytest.mark.parametrize("shift", [-3.0, 0.0, 5.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_curved_valley_is_followed_to_its_end_wherever_it_lies(shift, sign):
    """Translation and reflection must not matter."""
    start = torch.tensor([[-1.2, 1.0]], dtype=torch.double)
    problem = Known([lambda x: valley(sign * (x - shift))])
    found = minimise(problem, sign * start + shift, steps=10)
    assert torch.allclose(found.unknowns, sign * torch.ones(1, 2).double() + shift, atol=1e-6)
    assert found.statuses == [Status.CONVERGED]


def test_kinks_do_not_stop_it():
    found = minimise(Known([kinked]), torch.randn(1, 6, dtype=torch.double), steps=50)
    assert float(found.loss) < 1e-6


def test_problems_neither_wait_for_nor_disturb_each_other():
    torch.manual_seed(0)
    start = torch.randn(4, 5, dtype=torch.double)
    losses = [bowl(1e-6), valley, bowl(1e6, 3.0), lambda x: x.sum() * torch.nan]
    together = minimise(Known(losses), start, steps=1, inner=12)
    for row, loss in enumerate(losses[:3]):
        alone = minimise(Known([loss]), start[row : row + 1], steps=1, inner=12)
        assert torch.allclose(together.unknowns[row], alone.unknowns[0], rtol=1e-9, atol=1e-12)
        assert together.evaluations[row] == alone.evaluations[0]
    assert together.statuses[3] is Status.DIVERGED
    assert together.evaluations[3] == 1


def test_finished_problems_leave_the_batch():
    problems = Known([bowl(), bowl(), bowl(), valley])
    minimise(problems, torch.full((4, 8), -1.0, dtype=torch.double), steps=50)
    assert problems.evaluated[0] == 4
    assert problems.evaluated[-1] == 1


def test_a_step_into_nan_is_taken_back():
    def walled(x):
        return torch.where((x < 1).all(), (x - 0.9).square().sum(), torch.nan)

    found = minimise(Known([walled]), torch.full((1, 3), -40.0, dtype=torch.double), steps=20)
    assert torch.allclose(found.unknowns, torch.full((1, 3), 0.9).double(), atol=1e-6)


def test_the_loss_never_rises_and_the_budget_is_kept():
    start = torch.full((1, 6), -1.0, dtype=torch.double)
    seen = [float(minimise(Known([valley]), start, steps=1, inner=n).loss) for n in (2, 10, 30, 90)]
    assert seen == sorted(seen, reverse=True)
    problems = Known([valley])
    found = minimise(problems, start, steps=2, inner=7)
    assert len(problems.evaluated) == int(found.evaluations) == 14
    assert found.statuses == [Status.EXHAUSTED]


def test_a_loss_that_hardly_falls_ends_the_search():
    found = minimise(
        Known([kinked]), torch.zeros(1, 3, dtype=torch.double), steps=1000, patience=20
    )
    assert found.statuses == [Status.CONVERGED]
    assert int(found.evaluations) < 2000


def test_out_of_time_it_keeps_what_it_has():
    start = torch.full((1, 6), -1.0, dtype=torch.double)
    found = LBFGS().minimise(Known([valley]), start, Stopping(1, seconds=0.0))
    assert found.statuses == [Status.OUT_OF_TIME]
    assert torch.equal(found.unknowns, start)
