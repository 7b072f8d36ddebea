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


def test_a_worker_killed_costs_its_piece_alone_and_the_records_are_the_same(engine, tmp_path):
    """Piece 0 kills whoever computes it; what was under way beside it is computed again."""
    found = dict(engine.run(Deadly(tmp_path, always=frozenset({0})), pieces(5)))
    assert (tmp_path / "0").exists()
    assert [piece.samples for piece, records in found.items() if records is None] == [(0,)]
    here = dict(Local().run(Sums(), pieces(5)))
    assert len(found) == 5
    assert all(records == here[piece] for piece, records in found.items() if records is not None)


def test_a_mistake_is_raised_as_it_is(engine):
    with pytest.raises(DataError, match="empty"):
        list(engine.run(Mistaken(), pieces(1)))


@pytest.mark.slow
def test_a_cluster_made_for_the_run_computes_the_same():
    pytest.importorskip("ray")
    found = dict(Cluster(workers=1).run(Sums(), pieces(2)))
    assert found == dict(Local().run(Sums(), pieces(2)))
