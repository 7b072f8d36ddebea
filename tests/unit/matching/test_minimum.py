"""Every optimiser keeps the same contract."""

import pytest
import torch

from softleak.core.results import Status
from softleak.matching import LBFGS, Adam, Optimiser
from softleak.matching.optimisers import STATUSES, Minimum
from softleak.matching.reconstruction import Stopping, Watch
from tests.unit.matching.problems import Known, bowl, valley

OPTIMISERS = [Adam(steps=60), LBFGS(steps=3)]


def run(optimiser, losses, start, stopping=None):
    return optimiser.minimise(Known(losses), start, stopping or Stopping(1))


def start(rows=2):
    return torch.full((rows, 4), -1.0, dtype=torch.double)


def test_endings_are_indices_of_statuses():
    ending = torch.arange(len(STATUSES))
    found = Minimum(torch.zeros(1), torch.zeros(1), torch.zeros(1), ending)
    assert found.statuses == list(Status)


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda one: type(one).__name__)
class TestContract:
    def test_it_is_an_optimiser(self, optimiser):
        assert isinstance(optimiser, Optimiser)
        assert optimiser.vectors > 0

    def test_the_loss_is_that_of_the_unknowns_and_no_higher_than_at_the_start(self, optimiser):
        found = run(optimiser, [valley, bowl(2.0)], start())
        assert float(found.loss[0]) == pytest.approx(float(valley(found.unknowns[0])))
        assert float(found.loss[0]) <= float(valley(start()[0]))
        assert bool((found.evaluations <= optimiser.evaluations).all())

    def test_parts_divide_the_evaluations(self, optimiser):
        parts = [optimiser.part(*ends) for ends in ((0.0, 0.5), (0.5, 1.0))]
        assert sum(part.evaluations for part in parts) == optimiser.evaluations

    def test_translation_does_not_matter(self, optimiser):
        one = run(optimiser, [valley], start(1))
        other = run(optimiser, [lambda x: valley(x - 3)], start(1) + 3)
        assert torch.allclose(one.unknowns + 3, other.unknowns, atol=1e-6)

    def test_the_start_is_not_changed(self, optimiser):
        given = start()
        run(optimiser, [valley, bowl()], given)
        assert torch.equal(given, start())

    def test_it_ends_when_it_is_told_to(self, optimiser):
        watch = Watch()
        watch.stop()
        found = run(optimiser, [valley, bowl()], start(), Stopping(1, watch=watch))
        assert found.statuses == [Status.INTERRUPTED] * 2
        assert torch.equal(found.unknowns, start())
