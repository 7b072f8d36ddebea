import pytest
import torch

from softleak.core.errors import OptionError
from softleak.matching import LBFGS, Adam, Matching
from softleak.matching.optimisers import MOST_RESTARTS, TRIAL, minimise_attempts
from softleak.matching.reconstruction import Stopping
from tests.unit.matching.problems import Known


def two_valleys(x):
    """A shallow minimum at −2 and the lowest one at 2."""
    return ((x.square() - 4).square() - 0.5 * x).sum()


def test_attempts_leave_the_best_one_something():
    assert TRIAL * (MOST_RESTARTS + 1) < 1
    assert MOST_RESTARTS == 8
    with pytest.raises(OptionError, match="0 to 8 restarts, got 9"):
        Matching(restarts=9)


@pytest.mark.parametrize("optimiser", [Adam(steps=400), LBFGS(steps=5, progress=0.0)], ids=str)
def test_the_best_attempt_of_each_problem_goes_on(optimiser):
    bad, good = (torch.full((1, 1), x, dtype=torch.double) for x in (-2.2, 2.2))
    starts = [torch.cat([bad, good]), torch.cat([good, bad]), torch.cat([bad, bad])]
    problems = Known([two_valleys, two_valleys])
    found = minimise_attempts(optimiser, problems, starts, Stopping(1))
    assert bool((found.unknowns > 1.9).all())
    assert bool((found.evaluations <= optimiser.evaluations).all())
    alone = minimise_attempts(optimiser, problems, starts[:1], Stopping(1))
    assert (alone.unknowns > 0).flatten().tolist() == [False, True]
