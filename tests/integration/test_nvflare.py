"""Federations in NVIDIA FLARE's own simulator: without the filter, with it, and with a fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def federate(out: Path, *options: str) -> dict[str, dict]:
    """The scores of every federation of one run of the example, by its name."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "examples.nvflare", *options, "--out", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=3000,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return {p.parent.name: json.loads(p.read_text()) for p in out.glob("*/scores.json")}


def test_an_open_client_a_filtered_one_and_one_whose_filter_fails(tmp_path):
    found = federate(
        tmp_path, "--mixed", "--small", "--size=8", "--rounds=1", "--seeds=1", "--stop=input"
    )["mixed"]
    open_, filtered, broken = (found[kind] for kind in ("open", "filtered", "broken"))
    assert open_["updates"] == open_["labels"] == open_["images"] == 1
    assert filtered["updates"] == 1
    assert filtered["labels"] == filtered["images"] == 0
    assert len(filtered["seconds"]) == 1  # which came by the event stream
    assert broken["updates"] == 0
    assert broken["dropped"] == 1


@pytest.mark.slow
def test_four_clients_and_three_rounds(tmp_path):
    found = federate(tmp_path, "--stop=input,label", "--seeds=1")
    assert found["without"]["open"]["images"] == found["without"]["open"]["labels"] == 12
    assert found["with"]["filtered"]["updates"] == 12
    assert found["with"]["filtered"]["images"] == found["with"]["filtered"]["labels"] == 0
    assert found["fault"]["filtered"]["updates"] == 9
    assert found["fault"]["filtered"]["images"] == found["fault"]["filtered"]["labels"] == 0
    assert found["fault"]["broken"]["dropped"] == 3
    assert found["fault"]["broken"]["updates"] == 0


def test_the_integration_says_what_to_install():
    code = "import sys; sys.modules['nvflare'] = None; import softleak.guard.nvflare"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "pip install '.[nvflare]' in a checkout of softleak" in done.stderr
