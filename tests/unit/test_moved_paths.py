"""Paths that users were told of go on importing, and say where their contents have moved."""

from __future__ import annotations

import importlib
import sys
import warnings

import pytest

MOVED = {
    "softleak.auditing": "softleak.audit",
    "softleak.data": "softleak.paper.data",
    "softleak.integrations.flower": "softleak.guard.flower",
    "softleak.integrations.nvflare": "softleak.guard.nvflare",
    "softleak.metrics": "softleak.audit.metrics",
    "softleak.models": "softleak.paper.models",
}
STAYED = ("softleak.defenses", "softleak.matching")


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_a_moved_path_warns_and_gives_the_same_objects(old, new, monkeypatch):
    if old.startswith("softleak.integrations"):
        pytest.importorskip({"flower": "flwr", "nvflare": "nvflare"}[old.rsplit(".", 1)[1]])
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"import {new} instead"):
        moved = importlib.import_module(old)
    there = importlib.import_module(new)
    for name in there.__all__:
        assert getattr(moved, name) is getattr(there, name), name


@pytest.mark.parametrize("path", STAYED)
def test_a_path_that_stayed_does_not_warn(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        package = importlib.import_module(path)
    assert all(hasattr(package, name) for name in package.__all__)


def test_audit_is_the_function_after_its_folder_was_imported():
    import softleak as sl
    import softleak.audit.run

    assert callable(sl.audit)
