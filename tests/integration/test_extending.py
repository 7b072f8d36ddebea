"""What the pages on extending add shows in everything that an audit writes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import softleak as sl
from softleak.audit import input_attacks, leaks, sweeps
from softleak.audit.report import Audit, Outcome
from softleak.cli import app
from softleak.cli.exits import Exit
from softleak.core.vocabulary import State
from softleak.labels.evidence import probes
from softleak.present import as_data, dossier_data, write_page

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = "".join((DOCS / name).read_text() for name in ("extending.md", "extending-methods.md"))
SECTIONS = {
    part.partition("\n")[0]: re.findall(r"```python\n(.*?)```", part, re.DOTALL)
    for part in PAGES.split("\n## ")[1:]
}


@pytest.fixture
def extended(monkeypatch):
    """Return a function that runs a section's first block; what it registers is forgotten after."""
    monkeypatch.setattr(leaks, "_ROWS", dict(leaks._ROWS))
    registries: list[list] = [input_attacks.INPUT_ATTACKS, sweeps.SWEEPS, probes.FITTERS]
    before = [list(registry) for registry in registries]

    def run(section: str) -> ModuleType:
        made = ModuleType("extension")
        monkeypatch.setitem(sys.modules, "extension", made)  # where dataclasses look for their own
        exec(compile(SECTIONS[section][0], section, "exec"), made.__dict__)
        return made

    yield run
    for registry, held in zip(registries, before, strict=True):
        registry[:] = held


def network() -> nn.Module:
    """Return the network of the update, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 10))


def test_a_new_leak_is_in_verdict_page_json_exit_code_and_dossier(extended, tmp_path):
    extended("A kind of leak")
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
    page = (out / "index.html").read_text()
    assert "how many samples are in it" in page
    assert "the number of samples follows from the update" in page  # its tile
    dossier = json.loads((out / "dossier.json").read_text())
    assert "how many samples are in it" in dossier["verdict"]
    assert dossier["audited"]["updates"][0]["states"]["size"] == State.LEAKED.value
    assert any(line.startswith("Size: recovered from 1 of 1") for line in dossier["residual_risk"])
    assert "how many samples are in it" in (out / "dossier.html").read_text()
    assert "softleak/size" in (tmp_path / "a.sarif").read_text()
    cases = {c.get("name"): c for c in ElementTree.parse(tmp_path / "a.xml").iter("testcase")}
    assert cases["size"].find("failure") is not None


def test_without_its_row_the_name_is_refused(tmp_path):
    done = CliRunner().invoke(app, ["audit", "--fail-on", "size", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "composition" in done.output


def test_a_new_attack_is_in_page_json_and_dossier(extended, tmp_path):
    made = extended("An attack")
    options = made.Options(seconds=0.0)
    found = Audit((sl.audit(made.model, made.share, options=options),))
    ended = {a["attack"]: a["outcome"] for a in as_data(found)["reports"][0]["attacks"]}
    assert ended["public-images"] == Outcome.SUCCEEDED.value
    write_page(tmp_path / "index.html", found)
    assert "Comparison with public images" in (tmp_path / "index.html").read_text()
    rows = {a["id"]: a for a in dossier_data(found)["attacks"]}
    assert rows["public-images"]["outcomes"][Outcome.SUCCEEDED.value] == 1


def test_a_new_defence_is_tried_and_new_evidence_and_a_new_family_are_used(extended, capsys):
    assert extended("A defence").sweeps(1.0)[-1].name == "Rounding"
    assert extended("A kind of evidence").rec.status is sl.Status.UNIQUE
    votes = extended("A label family").rec
    assert votes.status is sl.Status.UNIQUE
    assert "NO_SOLUTION" in capsys.readouterr().out  # without them
