"""The example in Flower's own simulation, at a size for CI; and an installation without Flower."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from tools.browser import browser

ROOT = Path(__file__).resolve().parents[2]
SIZE = ["--clients=8", "--rounds=2", "--size=16", "--attacked=8", "--seeds=2"]


@pytest.mark.skipif(find_spec("flwr") is None, reason="needs the extra `flower`")
def test_the_example_federates_without_and_with_the_guard(tmp_path):
    """One test, for the two federations take more than a minute."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "examples.flower", *SIZE, "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=900,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    scores = json.loads((tmp_path / "scores.json").read_text())
    without_a_guard_the_server_has_everything(scores["without"])
    with_it_no_image_and_training_still_improves(scores["with"])
    for found in scores.values():
        assert found["monitor"] < 0.1 * found["seconds"]
    the_log_names_every_client_of_every_round(tmp_path / "open" / "audit.jsonl")
    the_page_says(tmp_path / "index.html", "without a guard 16 of 16, with the guard 0 of 16")
    the_page_says(tmp_path / "guarded" / "index.html", "Of 16 updates, 0 gave away")


def without_a_guard_the_server_has_everything(found):
    assert found["updates"] == found["attacked"] == 16
    assert found["labels"] == found["classes"] == found["images"] == 16
    assert found["worst_psnr"] > 60


def with_it_no_image_and_training_still_improves(found):
    assert found["updates"] == found["attacked"] == 16
    assert found["images"] == found["labels"] == 0
    assert found["classes"] <= found["bound"] * found["updates"] < found["updates"]
    for before, after in (found["loss"], found["held_out"]):
        assert after < before


def the_log_names_every_client_of_every_round(path):
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(e["round"], e["status"]) for e in entries} == {(1, "UNIQUE"), (2, "UNIQUE")}
    assert len({e["node"] for e in entries}) == 8


def the_page_says(path, heading):
    """And loads nothing, and fits a telephone."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=browser(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
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
        chromium.close()


def test_without_flower_the_import_says_what_to_install():
    code = "import sys; sys.modules['flwr'] = None; import softleak.integrations.flower"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "pip install 'softleak[flower]'" in done.stderr


def test_softleak_itself_does_not_need_flower():
    code = "import sys; sys.modules['flwr'] = None; import softleak.cli, softleak.labels.batch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
