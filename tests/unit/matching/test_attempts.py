import pytest
import torch

from softleak.core.errors import OptionError
from softleak.matching import LBFGS, Adam, AttemptSettings, Matching
from softleak.matching.reconstruction import Stopping
from tests.unit.matching.problems import Known


def two_valleys(x):
    """A shallow minimum at −2 and the lowest one at 2."""
    return ((x.square() - 4).square() - 0.5 * x).sum()


@pytest.mark.parametrize(("trial", "most"), [(0.1, 8), (0.3, 2), (0.5, 0), (0.05, 18)])
def test_attempts_leave_the_best_one_something(trial, most):
    settings = AttemptSettings(trial=trial)
    assert settings.most_restarts == most
    assert trial * (most + 1) < 1
    with pytest.raises(OptionError, match=f"0 to {most} restarts, got {most + 1}"):
        Matching(attempts=settings, restarts=most + 1)


@pytest.mark.parametrize("trial", [0.0, 1.0, -0.1])
def test_a_trial_is_a_fraction(trial):
    with pytest.raises(OptionError, match=f"between 0 and 1, got {trial}"):
        AttemptSettings(trial=trial)


@pytest.mark.parametrize("optimiser", [Adam(steps=400), LBFGS(steps=5, progress=0.0)], ids=str)
def test_the_best_attempt_of_each_problem_goes_on(optimiser):
    bad, good = (torch.full((1, 1), x, dtype=torch.double) for x in (-2.2, 2.2))
    starts = [torch.cat([bad, good]), torch.cat([good, bad]), torch.cat([bad, bad])]
    problems = Known([two_valleys, two_valleys])
    found = AttemptSettings().minimise(optimiser, problems, starts, Stopping(1))
    assert bool((found.unknowns > 1.9).all())
    assert bool((found.evaluations <= optimiser.evaluations).all())
    alone = AttemptSettings().minimise(optimiser, problems, starts[:1], Stopping(1))
    assert (alone.unknowns > 0).flatten().tolist() == [False, True]
