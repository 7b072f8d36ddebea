import torch

from softleak.core.results import Status
from softleak.matching.optimisers import Adam
from softleak.matching.reconstruction import Stopping
from tests.unit.matching.problems import Known, blown, bowl, valley


def minimise(problems, start, optimiser):
    return optimiser.minimise(problems, start, Stopping(1))


def test_it_takes_the_steps_torch_takes():
    torch.manual_seed(0)
    start = torch.randn(1, 6, dtype=torch.double)
    x = start.clone().requires_grad_()
    way = torch.optim.Adam([x], lr=0.1)
    falls = torch.optim.lr_scheduler.MultiStepLR(way, [150, 250, 350], 0.1)
    lowest = torch.inf
    for _ in range(400):
        way.zero_grad()
        loss = valley(x[0])
        loss.backward()
        if loss.item() < lowest:
            lowest, best = loss.item(), x.detach().clone()
        way.step()
        falls.step()
    found = minimise(Known([valley]), start, Adam(steps=400))
    assert torch.allclose(found.unknowns, best, rtol=1e-9)
    assert float(found.loss) == lowest


def test_a_diverging_problem_is_marked_and_left_at_its_best():
    start = torch.zeros(2, 3, dtype=torch.double)
    found = minimise(Known([blown, bowl(centre=1.0)]), start, Adam(lr=0.1, steps=500))
    assert found.statuses == [Status.DIVERGED, Status.EXHAUSTED]
    assert found.loss[0].isfinite()
    assert int(found.evaluations[0]) < int(found.evaluations[1]) == 500
    assert torch.allclose(found.unknowns[1], torch.ones(3).double(), atol=1e-3)


def test_parts_share_one_schedule():
    whole = Adam(lr=1.0, steps=80)
    rates = [whole.part(0.5, 1.0).rate(step) for step in (40, 49, 50, 70)]
    assert rates == [whole.rate(step) for step in (40, 49, 50, 70)]
    assert whole.part(0.0, 0.1).evaluations + whole.part(0.1, 1.0).evaluations == 80
