from __future__ import annotations

from importlib.util import find_spec

import pytest

if find_spec("flwr") is None:  # the extra is for Python 3.11 and later
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def _in_a_run(monkeypatch):
    """Messages can only be made within a run of Flower."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)
