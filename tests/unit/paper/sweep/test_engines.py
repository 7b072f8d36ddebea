from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

from softleak.core.errors import DataError, OptionError
from softleak.paper import sweep
from softleak.paper.sweep import cluster, local, processes
from tests.unit.paper.sweep.computes import Deadly, Mistaken, Sums, pieces


@pytest.fixture(params=["processes", "ray"], scope="module")
def engine(request):
    if request.param == "processes":
        yield partial(processes, workers=2)
        return
    ray = pytest.importorskip("ray")
    # Every actor imports torch by itself, and again after it was killed: one is enough here.
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield partial(cluster, workers=2)  # one more than there are cores
    ray.shutdown()


def test_a_worker_killed_costs_its_piece_alone_and_the_records_are_the_same(engine, tmp_path):
    """Piece 0 kills whoever computes it; what was under way beside it is computed again."""
    found = dict(engine(Deadly(tmp_path, always=frozenset({0})), pieces(5)))
    assert (tmp_path / "0").exists()
    assert [piece.samples for piece, records in found.items() if records is None] == [(0,)]
    here = dict(local(Sums(), pieces(5)))
    assert len(found) == 5
    assert all(records == here[piece] for piece, records in found.items() if records is not None)


def test_a_mistake_is_raised_as_it_is(engine):
    with pytest.raises(DataError, match="empty"):
        list(engine(Mistaken(), pieces(1)))


def test_a_cluster_that_is_not_there_is_said(monkeypatch):
    def init(*_, **__):
        raise ConnectionError("Could not find any running Ray instance")

    absent = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(sweep, "import_extra", lambda *_: absent)
    with pytest.raises(OptionError, match="no Ray cluster at auto"):
        list(cluster(Sums(), pieces(1), "auto"))


@pytest.mark.slow
def test_a_cluster_made_for_the_run_computes_the_same():
    pytest.importorskip("ray")
    found = dict(cluster(Sums(), pieces(2), workers=1))
    assert found == dict(local(Sums(), pieces(2)))
