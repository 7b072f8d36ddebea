from __future__ import annotations

import pytest

from softleak.errors import DataError
from softleak.sweep import Cluster, Local, Processes
from tests.unit.sweep.computes import Deadly, Mistaken, Sums, pieces


@pytest.fixture(params=["processes", "ray"], scope="module")
def engine(request):
    if request.param == "processes":
        yield Processes(2)
        return
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield Cluster(workers=2)
    ray.shutdown()


def by_sample(found):
    return sorted((record for _, records in found for record in records), key=lambda r: r.sample)


def test_records_are_the_same_wherever_they_are_computed(engine):
    wanted = by_sample(Local().run(Sums(), pieces(6)))
    assert by_sample(engine.run(Sums(), pieces(6))) == wanted
    assert [record.sample for record in wanted] == list(range(6))


def test_a_worker_that_dies_costs_nothing_but_time(engine, tmp_path):
    compute = Deadly(tmp_path, once=frozenset({1}))
    found = list(engine.run(compute, pieces(4)))
    assert (tmp_path / "1").exists()
    assert by_sample(found) == by_sample(Local().run(Sums(), pieces(4)))


def test_a_piece_that_always_kills_is_given_up_and_the_others_are_not(engine, tmp_path):
    compute = Deadly(tmp_path, always=frozenset({0}))
    found = dict(engine.run(compute, pieces(5)))
    given_up = [piece.samples for piece, records in found.items() if records is None]
    assert (0,) in given_up
    assert len(found) == 5
    # With processes the death takes those with it that were under way, and they are tried again.
    assert given_up == [(0,)]


def test_a_mistake_is_raised_as_it_is(engine):
    with pytest.raises(DataError, match="empty"):
        list(engine.run(Mistaken(), pieces(1)))
