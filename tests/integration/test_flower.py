"""The example in Flower's own simulation, at a size for CI; and an installation without Flower."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLIENTS, ROUNDS = 3, 2
UPDATES, ATTACKED = CLIENTS * ROUNDS, ROUNDS  # one image of every round is attacked
# Each client's guard searches for its noise, which is most of the time; pruning and clipping before
# it have tests of their own. The noise of three clients averages out less than that of many, so
# they take smaller steps than the example's.
SIZE = [
    f"--clients={CLIENTS}", f"--rounds={ROUNDS}", "--attacked=1", "--size=16", "--seeds=2",
    "--lr=0.02", "--noise-only", "--actors=1",
]  # fmt: skip
needs_flower = pytest.mark.skipif(find_spec("flwr") is None, reason="needs the extra `flower`")


@pytest.fixture(scope="module")
def federated(tmp_path_factory):
    """The folder of one run of the example, without and with the guard."""
    out = tmp_path_factory.mktemp("federation")
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "examples.flower", *SIZE, "--out", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=900,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.fixture(scope="module")
def scores(federated):
    return json.loads((federated / "scores.json").read_text())


@needs_flower
def test_without_a_guard_the_server_has_everything(scores):
    found = scores["without"]
    assert found["updates"] == found["labels"] == found["classes"] == UPDATES
    assert found["attacked"] == found["images"] == ATTACKED
    assert found["worst_psnr"] > 60


@needs_flower
def test_with_the_guard_there_is_no_image_and_training_is_not_undone(scores):
    found = scores["with"]
    assert found["updates"] == UPDATES
    assert found["attacked"] == ATTACKED
    assert found["images"] == found["labels"] == 0
    assert found["classes"] <= found["bound"] * found["updates"] < found["updates"]
    for before, after in (found["loss"], found["held_out"]):
        assert after < 1.001 * before  # what is kept back or defended does no harm in two rounds


@needs_flower
def test_the_monitor_takes_little_of_the_rounds_time(scores):
    for found in scores.values():
        assert found["monitor"] < 0.1 * found["seconds"]


@needs_flower
def test_the_log_names_every_client_of_every_round(federated):
    lines = (federated / "open" / "audit.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert {(e["round"], e["status"]) for e in entries} == {(1, "UNIQUE"), (2, "UNIQUE")}
    assert len({e["node"] for e in entries}) == CLIENTS


@needs_flower
def test_the_pages_say_what_was_seen_load_nothing_and_fit_a_telephone(federated, chromium):
    both = f"without a guard {ATTACKED} of {ATTACKED}, with the guard 0 of {ATTACKED}"
    headings = {
        federated / "index.html": both,
        federated / "guarded" / "index.html": f"Of {UPDATES} updates, 0 gave away",
    }
    for path, heading in headings.items():
        check_page(chromium, path, heading)


def check_page(chromium, path, heading):
    page = chromium.new_page(viewport={"width": 390, "height": 800})
    asked, complaints = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(path.as_uri())
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert heading in page.locator("h1").inner_text()
    page.close()


def test_softleak_itself_does_not_need_flower_and_the_integration_says_what_to_install():
    """In one process, because importing torch takes most of the time."""
    code = (
        "import sys; sys.modules['flwr'] = None; import softleak.cli, softleak.labels.composition; "
        "print('imported'); import softleak.guard.flower"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "imported", done.stderr
    assert done.returncode == 1
    assert "pip install '.[flower]'" in done.stderr
