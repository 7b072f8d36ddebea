"""Killed at any moment, the command leaves the last complete report or none."""

from __future__ import annotations

import pytest
import torch

import softleak as sl
from softleak.paper import data
from tests.integration.audits import SHAPE, SMALL, Small
from tests.integration.forks import ROOT

WRITING = """
import json, os, pathlib, signal, sys, time, softleak as sl
from softleak.core.subject import Subject
from softleak.audit import Audit, NamedShare, Options, audit_shares
from softleak.paper.models import trained_lenet
from softleak.present import write_json, write_page
share, kills = sys.argv[0], int(sys.argv[1])
subject = Subject.of(trained_lenet(), (3, 32, 32))
named = [NamedShare("x" * 50, sl.GradientShare.load(share))] * 40
found = Audit(tuple(audit_shares(subject, named, Options(inputs=False))))

def write(html, text):
    write_page(html, found)
    write_json(text, found)

begun = time.monotonic()
write(*map(pathlib.Path, ("first.html", "first.json")))
took = time.monotonic() - begun
for number in range(kills):
    out = pathlib.Path(str(number))
    out.mkdir()
    html, text = out / "index.html", out / "audit.json"
    parent, child = os.getpid(), os.fork()
    while child == 0 and os.getppid() == parent:
        write(html, text)
    if child == 0:
        os._exit(0)  # The program was ended, and nobody is left to kill this.
    while number % 2 and not text.exists():  # Half of the children have a report to lose.
        time.sleep(0.01)
    time.sleep(took * number / kills)
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert {path for path in out.iterdir() if path.name[0] != "."} <= {html, text}
    assert not html.exists() or html.read_text().rstrip().endswith("</html>")
    assert not text.exists() or json.loads(text.read_text())["shares"] == 40
"""
KILLS, MANY = 6, 20


def program(code: str, *arguments: object) -> str:
    """Code that finds its arguments in ``sys.argv`` and the modules of these tests on its path."""
    return (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = {[*map(str, arguments)]}{code}"
    )


@pytest.fixture
def share(tmp_path, trained, draw):
    """A share of the trained LeNet in a file."""
    (sample,) = draw(data.Hard(), 1)
    path = tmp_path / "x.safetensors"
    sl.capture(trained, sample.x, sample.y).save(path)
    return path


def test_a_report_is_whole_or_absent(tmp_path, forks, share):
    """Only files being written all the time show a torn one: the writing is what is repeated."""
    done = forks.run(program(WRITING, share, KILLS), tmp_path)
    assert done.returncode == 0, done.stderr


STARTED = """
import json, os, pathlib, random, signal, time
import softleak.cli.audit, softleak.paper.models  # once, and not in every child
from softleak.cli import app

def started(command):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        app(command)
    return child
"""

MOMENTS = """
out, kills, command = pathlib.Path(sys.argv[0]), int(sys.argv[1]), sys.argv[2:]
moments = random.Random(0)

def whole():
    html, found = out / "index.html", out / "audit.json"
    assert not html.exists() or html.read_text().rstrip().endswith("</html>")
    assert not found.exists() or json.loads(found.read_text())["shares"] == 1
    return html.exists(), found.exists()

begun = time.monotonic()
os.waitpid(started(command), 0)
took = time.monotonic() - begun
assert whole() == (True, True)
killed, tries = 0, 0
while killed < kills and tries < 10 * kills:
    tries += 1
    if tries % 2:  # Half of the children have a report to lose, the others have none.
        for path in out.iterdir():
            path.unlink()
    before = whole()
    begun, child = time.monotonic(), started(command)
    time.sleep(moments.uniform(0, 1) * took)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        killed += 1
    else:  # The child ended by itself, so a whole run is shorter than was assumed.
        took = 0.9 * min(took, time.monotonic() - begun)
    assert all(was <= has for was, has in zip(before, whole()))
print(killed)
"""


def test_killed_at_random_moments(tmp_path, forks):
    """The command over and over, from start to end, with a report to lose and without.

    The model is small, so that writing the report is a good part of a run.
    """
    model = Small()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    sl.capture(model, torch.rand(2, 6, 6), 1).save(tmp_path / "x.safetensors")
    out = tmp_path / "out"
    command = [
        "audit", "--model", SMALL, *SHAPE, "--weights", tmp_path / "weights.pt", "--labels-only",
        "--share", tmp_path / "x.safetensors", "--out", out,
    ]  # fmt: skip
    done = forks.run(program(STARTED + MOMENTS, out, MANY, *command), tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == MANY


INVERTING = """
out, command = pathlib.Path(sys.argv[0]), sys.argv[1:]
_, status = os.waitpid(started([*command, "--labels-only"]), 0)
assert status == 0
before = {path.name: path.read_bytes() for path in out.iterdir()}
assert set(before) == {"index.html", "audit.json"}
child = started(command)
time.sleep(0.5)  # an inversion takes two seconds or more
os.kill(child, signal.SIGKILL)
assert os.WIFSIGNALED(os.waitpid(child, 0)[1])  # it was still at work
assert {path.name: path.read_bytes() for path in out.iterdir()} == before
"""


def test_the_command_itself_leaves_the_last_report(tmp_path, forks, share):
    """Killed while it inverts, it leaves what was there before."""
    out = tmp_path / "out"
    command = [
        "audit", "--model", "softleak.paper.models:trained_lenet", "--share", share, "--out", out,
    ]  # fmt: skip
    done = forks.run(program(STARTED + INVERTING, out, *command), tmp_path)
    assert done.returncode == 0, done.stderr
