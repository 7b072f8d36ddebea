"""``softleak reproduce`` from end to end; killed, it goes on where it was."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from softleak.cli import app
from softleak.core.environment import code
from softleak.paper.reproduction import LEGEND, SCORED

COMMAND = ["reproduce", "table2", "--only", "lenet", "--samples", "4"]
RUN = [sys.executable, "-c", "from softleak.cli import app; app()", *COMMAND]


def records(folder):
    base = sqlite3.connect(folder / "records.sqlite", timeout=30)
    rows = base.execute("SELECT * FROM records ORDER BY experiment, cell, repeat, sample")
    found = rows.fetchall()
    base.close()
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run, in this process."""
    out = tmp_path_factory.mktemp("whole")
    done = CliRunner().invoke(app, [*COMMAND, "--out", str(out)])
    assert done.exit_code == 0, done.output
    return out, done.output


def test_ours_stand_beside_the_papers(whole):
    out, output = whole
    assert "99.7%" in output
    assert "4 samples of the paper's 1000; 200 images of the 10000" in output.replace("\n", " ")
    assert len(records(out)) == 16
    assert (out / "table2.csv").read_text().count("UNIQUE") == 32
    assert "| lenet, smoothed | 100.0% ▲ (99.7%)" in (out / "RESULTS.md").read_text()
    page = (out / "index.html").read_text()
    assert "lenet trained, mixed" in page
    assert "No attack sees the truth, except in the column GT" in page
    assert SCORED in (out / "RESULTS.md").read_text()


def test_notes_have_room_in_a_narrow_terminal(whole):
    out, _ = whole
    done = CliRunner().invoke(app, [*COMMAND, "--out", str(out)], env={"COLUMNS": "80"})
    lines = done.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.rstrip().endswith(" [1]") for line in lines) == 4
    assert LEGEND in " ".join(done.output.split())
    note = "[1] 4 samples of the paper's 1000; 200 images of the 10000 of CIFAR-10's test set"
    assert note in " ".join(done.output.split())


def test_a_second_run_repeats_nothing(whole):
    out, _ = whole
    before = records(out)
    done = CliRunner().invoke(app, [*COMMAND, "--out", str(out)])
    assert done.exit_code == 0
    assert records(out) == before


def test_killed_twice_it_ends_with_the_same_records(whole, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for wanted in (3, 9):  # records there are when it is killed
        with subprocess.Popen(
            [*RUN, "--out", tmp_path], env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            held, deadline = 0, time.monotonic() + 120
            while held < wanted and time.monotonic() < deadline:
                time.sleep(0.02)
                if (tmp_path / "records.sqlite").exists():
                    try:
                        held = len(records(tmp_path))
                    except sqlite3.OperationalError:  # not even the table yet
                        held = 0
            process.send_signal(signal.SIGKILL)
        assert wanted <= len(records(tmp_path)) < 16
    done = CliRunner().invoke(app, [*COMMAND, "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert records(tmp_path) == records(whole[0])


def test_cells_that_lack_files_are_named(tmp_path):
    command = ["reproduce", "table2", "--only", "trained, mixed", "--samples", "1"]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path)], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert "lenet trained, mixed" in done.output
    assert "flowers17_224.npz" in done.output


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["table1"], "nothing can be run: the cells asked for need cifar100_test.npz, "),
        (["table2", "--only", "nosuchcell"], "no cell's name contains 'nosuchcell'"),
        (["table2", "--page", "PAGE"], "expected <!-- softleak reproduce: begin -->"),
        (["table2", "--page", "none.md"], "expected a Markdown file at none.md"),
    ],
    ids=["no files", "no cell", "no marks", "no page"],
)
def test_what_cannot_work_is_said_before_anything_is_computed(tmp_path, command, words):
    page = tmp_path / "page.md"
    page.write_text("no marks")
    command = [str(page) if word == "PAGE" else word for word in command]
    done = CliRunner().invoke(
        app, ["reproduce", *command, "--samples", "1", "--out", str(tmp_path / "out")],
        env={"COLUMNS": "300"},
    )  # fmt: skip
    assert done.exit_code == 2
    assert words in done.output
    assert not (tmp_path / "out" / "table2.csv").exists()


@pytest.mark.parametrize(
    ("what", "module"), [("fcn", "skimage.metrics"), ("figure1", "matplotlib")], ids=str
)
def test_what_is_not_installed_is_said_before_anything_is_computed(
    tmp_path, monkeypatch, what, module
):
    monkeypatch.setitem(sys.modules, module, None)
    command = ["reproduce", what, "--only", "fcn4 on cifar10", "--out", str(tmp_path)]
    monkeypatch.setattr("softleak.paper.reproduction.Laboratory.__call__", pytest.fail)
    done = CliRunner().invoke(app, command, env={"COLUMNS": "160"})
    assert done.exit_code == 2, done.output
    assert "pip install '.[" in done.output


def test_a_figure_that_cannot_be_drawn_costs_nothing_else(tmp_path):
    command = ["reproduce", "figure6", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "160"})
    assert done.exit_code == 2
    assert "figure6 was not drawn: " in done.output
    assert (tmp_path / "index.html").exists()


@pytest.mark.parametrize(
    ("what", "words"),
    [("embedded", "come from other files"), (code(), f"come from other code 1234, now {code()}.")],
    ids=["data", "code"],
)
def test_other_data_or_code_needs_another_folder(whole, tmp_path, what, words):
    out, _ = whole
    base = sqlite3.connect(out / "records.sqlite")
    (kept,) = base.execute("SELECT provenance FROM cells LIMIT 1").fetchone()
    changed = kept.replace(f'"{what}"', '"1234"')
    assert changed != kept
    other = tmp_path / "other"
    other.mkdir()
    base.execute("VACUUM INTO ?", (str(other / "records.sqlite"),))
    base.close()
    with sqlite3.connect(other / "records.sqlite") as copy:
        copy.execute("UPDATE cells SET provenance = ?", (changed,))
    done = CliRunner().invoke(app, [*COMMAND, "--out", str(other)])
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())
