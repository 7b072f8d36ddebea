"""A new kind of leak is one row of the table: it shows in everything that an audit writes."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import softleak as sl
from softleak.audit import leaks
from softleak.audit.leaks import Leak, Severity
from softleak.cli import app
from softleak.cli.exits import Exit
from softleak.core.vocabulary import State


def network() -> nn.Module:
    """Return the network of the update, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 10))


def counted(report: sl.AuditReport) -> State:
    """Return whether the update shows its number of samples."""
    return State.of(report.samples.size > 1, report.several)


@pytest.fixture
def size(monkeypatch):
    monkeypatch.setattr(leaks, "_ROWS", dict(leaks._ROWS))
    return leaks.register(
        Leak(
            "size", "number of samples", "how many samples are in it",
            "how many samples are in them", "every sample was told apart", Severity.LOW, counted,
        )
    )  # fmt: skip


def test_a_new_leak_is_in_verdict_page_json_exit_code_and_dossier(size, tmp_path):
    share = sl.capture(network(), torch.randn(2, 20), torch.tensor([3, 7]))
    save_file(dict(share), tmp_path / "update.safetensors")
    out = tmp_path / "out"
    arguments = [
        "audit", "--model", f"{__name__}:network", "--share", str(tmp_path / "update.safetensors"),
        "--input-shape", "20", "--fail-on", "size", "--out", str(out), "--dossier", "--labels-only",
        "--sarif", str(tmp_path / "a.sarif"), "--junit", str(tmp_path / "a.xml"),
    ]  # fmt: skip
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == Exit.LEAK, done.output
    data = json.loads((out / "audit.json").read_text())
    assert "how many samples are in it" in data["verdict"]
    assert data["reports"][0]["states"]["size"] == State.LEAKED.value
    assert data["counts"]["size"] == 1
    assert "number of samples" in (out / "index.html").read_text()
    assert "size" in (out / "dossier.json").read_text()
    assert "softleak/size" in (tmp_path / "a.sarif").read_text()
    cases = ElementTree.parse(tmp_path / "a.xml").iter("testcase")
    assert any("size" in (case.get("name") or "") for case in cases)


def test_without_its_row_the_name_is_refused(tmp_path):
    done = CliRunner().invoke(app, ["audit", "--fail-on", "size", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "composition" in done.output
