"""Killed at any moment, the command leaves the last complete report or none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import softleak as sl
from softleak import data

CODE = """
import sys, json, pathlib, softleak as sl
from softleak.audit import Audit, NamedShare, Options, Subject, audit_shares
from softleak.models import trained_lenet
from softleak.report import write_json, write_page
out, share = map(pathlib.Path, sys.argv[1:])
model = trained_lenet()
subject = Subject.of(model, (3, 32, 32))
named = [NamedShare("x" * 50, sl.GradientShare.load(share))] * 40
found = Audit(tuple(audit_shares(subject, named, Options(inputs=False))))
print("ready", flush=True)
while True:
    write_page(out / "index.html", found)
    write_json(out / "audit.json", found)
"""
KILLS, MANY = 6, 30


@pytest.mark.parametrize("number", range(KILLS))
def test_a_report_is_whole_or_absent(tmp_path, trained, draw, number):
    """Only files being written all the time show a torn one: the writing is what is repeated."""
    (sample,) = draw(data.Hard(), 1)
    sl.capture(trained, sample.x, sample.y).save(tmp_path / "x.safetensors")
    out = tmp_path / "out"
    out.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", CODE, out, tmp_path / "x.safetensors"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.013 * number**2)
        process.send_signal(signal.SIGKILL)
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    assert names <= {"index.html", "audit.json"}
    if "index.html" in names:
        assert (out / "index.html").read_text().rstrip().endswith("</html>")
    if "audit.json" in names:
        assert json.loads((out / "audit.json").read_text())["shares"] == 40


MOMENTS = """
import json, os, pathlib, random, signal, sys, time
from softleak.cli import app
out, kills, command = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
moments = random.Random(0)

def started():
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        app(command)
    return child

def whole():
    html, found = out / "index.html", out / "audit.json"
    assert not html.exists() or html.read_text().rstrip().endswith("</html>")
    assert not found.exists() or json.loads(found.read_text())["shares"] == 1
    return html.exists(), found.exists()

begun = time.monotonic()
os.waitpid(started(), 0)
took = time.monotonic() - begun
assert whole() == (True, True)
killed = 0
for number in range(kills):
    if number % 2:  # a report to lose, or none
        for path in out.iterdir():
            path.unlink()
    before = whole()
    child = started()
    time.sleep(moments.uniform(0, 1.1) * took)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    killed += os.WIFSIGNALED(status)
    assert all(was <= has for was, has in zip(before, whole()))
print(killed)
"""


def test_killed_at_random_moments(tmp_path, trained, draw):
    """The command over and over, from start to end, with a report to lose and without."""
    (sample,) = draw(data.Hard(), 1)
    sl.capture(trained, sample.x, sample.y).save(tmp_path / "x.safetensors")
    out = tmp_path / "out"
    command = [
        "audit", "--model", "softleak.models:trained_lenet", "--labels-only",
        "--share", tmp_path / "x.safetensors", "--out", out,
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", MOMENTS, out, str(MANY), *command], capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 20  # the others had ended before


def test_the_command_itself_leaves_the_last_report(tmp_path, trained, draw):
    """Killed while it inverts, it leaves what was there before."""
    (sample,) = draw(data.Hard(), 1)
    sl.capture(trained, sample.x, sample.y).save(tmp_path / "x.safetensors")
    code = "from softleak.cli import app; print('ready', flush=True); app()"
    command = [
        sys.executable, "-c", code, "audit", "--model", "softleak.models:trained_lenet",
        "--share", tmp_path / "x.safetensors", "--out", tmp_path / "out",
    ]  # fmt: skip
    done = subprocess.run([*command, "--labels-only"], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert set(before) == {"index.html", "audit.json"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.5)  # an inversion takes two seconds or more
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL  # it was still at work
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
