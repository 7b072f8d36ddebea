"""What one audit and one guarded update pass through stays few enough to be read."""

from __future__ import annotations

import pytest

from softleak.core import factors
from tools.trace import WALKS, an_audit


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """Return the trace of each walk, after a first one that imports what it needs."""
    traces = {}
    for name, walk in WALKS.items():
        walk(tmp_path_factory.mktemp("first"))
        traces[name] = walk(tmp_path_factory.mktemp("second"))
    return traces


def test_an_audit_passes_through_few_modules_and_types(walked):
    assert 20 <= len(walked["audit"].modules) <= 60
    assert 15 <= len(walked["audit"].dataclasses) <= 37


def test_a_guarded_update_passes_through_few_modules(walked):
    assert 20 <= len(walked["guard"].modules) <= 45


def test_an_audit_factors_the_heads_gradient_once(monkeypatch, tmp_path):
    factored = []
    compute = factors._factor

    def counted(gradients):
        factored.append(len(gradients))
        return compute(gradients)

    monkeypatch.setattr(factors, "_factor", counted)
    an_audit(tmp_path)
    probed, update = factored  # the probes of the model's layers, then the update
    assert probed > 1
    assert update == 1
