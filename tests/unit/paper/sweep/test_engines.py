from __future__ import annotations

from itertools import islice
from types import SimpleNamespace

import pytest

from softleak.core.errors import DataError, OptionError
from softleak.paper import sweep
from softleak.paper.sweep import Cluster, Local, Processes
from tests.unit.paper.sweep.computes import Deadly, Mistaken, Sums, pieces


@pytest.fixture(params=["processes", "ray"], scope="module")
def engine(request):
    if request.param == "processes":
        yield Processes(2)
        return
    ray = pytest.importorskip("ray")
    # Every actor imports torch by itself, and again after it was killed: one is enough here.
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield Cluster(workers=2)  # one more than there are cores
    ray.shutdown()


def test_a_worker_killed_costs_its_piece_alone_and_the_records_are_the_same(engine, tmp_path):
    """Piece 0 kills whoever computes it; what was under way beside it is computed again."""
    found = dict(engine.run(Deadly(tmp_path, always=frozenset({0})), pieces(5)))
    assert (tmp_path / "0").exists()
    assert [piece.samples for piece, records in found.items() if records is None] == [(0,)]
    here = dict(Local().run(Sums(), pieces(5)))
    assert len(found) == 5
    assert all(records == here[piece] for piece, records in found.items() if records is not None)


def test_only_the_piece_that_kills_is_given_up(monkeypatch):
    """Everything is still under way when a worker dies, each time."""
    handed = []

    def pool(workers, packed, rest):
        while under_way := list(islice(rest, workers)):
            handed.append([piece.samples[0] for piece in under_way])
            if 1 in handed[-1]:
                return under_way
            yield from ((piece, []) for piece in under_way)
        return []

    monkeypatch.setattr(sweep, "_until_one_dies", pool)
    found = dict(Processes(3).run(Sums(), pieces(5)))
    assert handed == [[0, 1, 2], [0], [1], [1], [2], [3, 4]]
    assert [piece.samples for piece, records in found.items() if records is None] == [(1,)]
    assert len(found) == 5


def test_a_mistake_is_raised_as_it_is(engine):
    with pytest.raises(DataError, match="empty"):
        list(engine.run(Mistaken(), pieces(1)))


def test_a_cluster_that_is_not_there_is_said(monkeypatch):
    def init(*_, **__):
        raise ConnectionError("Could not find any running Ray instance")

    absent = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(sweep, "import_extra", lambda *_: absent)
    with pytest.raises(OptionError, match="no Ray cluster at auto"):
        list(Cluster("auto").run(Sums(), pieces(1)))


@pytest.mark.slow
def test_a_cluster_made_for_the_run_computes_the_same():
    pytest.importorskip("ray")
    found = dict(Cluster(workers=1).run(Sums(), pieces(2)))
    assert found == dict(Local().run(Sums(), pieces(2)))
