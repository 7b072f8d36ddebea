"""breaching's attack, with a stand-in for breaching, which need not be installed."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import softleak as sl
from softleak.cli import app
from softleak.core.errors import MissingExtra
from softleak.core.subject import Subject
from softleak.paper.data import CIFAR10_NORM
from softleak.paper.leaderboard import (
    BREACHING,
    LEADERBOARD,
    BreachingAttack,
    breaching,
    frameworks_left_out,
    runnable,
)
from softleak.paper.tables import TABLE2

INSTALL = "pip install '.[breaching]'"
OPERATOR = "torchvision::nms"


@pytest.fixture
def absent(monkeypatch):
    """breaching cannot be imported, whether it is installed or not."""
    monkeypatch.setitem(sys.modules, "breaching", None)
    monkeypatch.delitem(sys.modules, "breaching.attacks", raising=False)


@pytest.fixture
def asked(monkeypatch):
    """What a stand-in for breaching was asked, which answers with random inputs."""
    seen = {}

    def reconstruct(payload, update, secrets):
        print("breaching prints")
        seen.update(payload=payload[0], update=update[0], secrets=secrets)
        return {"data": torch.randn(2, 3, 2, 2, requires_grad=True)}, {}

    def settings(attack, overrides):
        seen.update(attack=attack, overrides=overrides)

    attacks = ModuleType("breaching.attacks")
    attacks.prepare_attack = lambda model, loss, cfg: SimpleNamespace(reconstruct=reconstruct)
    stand_in = ModuleType("breaching")
    stand_in.attacks, stand_in.get_attack_config = attacks, settings
    monkeypatch.setitem(sys.modules, "breaching", stand_in)
    monkeypatch.setitem(sys.modules, "breaching.attacks", attacks)
    return seen


def test_breaching_is_told_no_more_than_the_other_attacks(asked, capsys):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 24), nn.Sigmoid(), nn.Linear(24, 4)).eval()
    x, y = torch.randn(2, 3, 2, 2), torch.eye(4)[[1, 3]]
    share, attack = sl.capture(model, x, y), BreachingAttack(normalisation=CIFAR10_NORM)
    (inputs, labels), (again, _) = (
        attack(Subject.of(model, (3, 2, 2)), share, 2) for _ in range(2)
    )

    assert asked["attack"] == "invertinggradients"
    assert asked["overrides"] == ["optim.max_iterations=300"]
    assert asked["secrets"] == {}
    assert asked["payload"]["metadata"].shape == (3, 2, 2)
    told = asked["update"]["metadata"]
    assert told.keys() == {"num_data_points", "labels", "local_hyperparams"}
    assert told["num_data_points"] == 2
    assert sorted(told["labels"].tolist()) == [1, 3]  # read off the share
    sent = zip(asked["update"]["gradients"], model.named_parameters(), strict=True)
    assert all(torch.equal(gradient, share[name]) for gradient, (name, _) in sent)

    assert torch.equal(inputs, again)  # the seed is the attack's own
    assert not inputs.requires_grad
    assert labels.argmax(1).tolist() == told["labels"].tolist()
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("absent")
def test_without_breaching_its_cells_are_left_out_and_a_line_says_how_to_install_it():
    run = runnable(LEADERBOARD)
    assert len(LEADERBOARD.cells) - len(run.cells) == len(LEADERBOARD.cells) // 5
    assert not any(BREACHING in cell.name for cell in run.cells)
    said = frameworks_left_out()
    assert "breaching is not installed" in said
    assert INSTALL in said
    assert "LeakPro was not run" in said


@pytest.mark.usefixtures("asked")
def test_with_breaching_every_cell_is_run():
    assert runnable(LEADERBOARD) is LEADERBOARD
    assert "breaching" not in frameworks_left_out()


@pytest.mark.usefixtures("absent")
def test_other_experiments_do_not_need_breaching():
    assert runnable(TABLE2) is TABLE2
    assert runnable(LEADERBOARD, "DLG") is LEADERBOARD
    with pytest.raises(MissingExtra, match="not installed"):
        runnable(LEADERBOARD, "breaching")


@pytest.mark.usefixtures("absent")
def test_who_asks_for_breaching_alone_is_told_before_anything_is_computed(tmp_path):
    done = CliRunner().invoke(
        app, ["reproduce", "leaderboard", "--only", "breaching", "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 2
    assert INSTALL in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("absent")
def test_the_leaderboard_ends_with_the_line(tmp_path):
    cell = "mlp ReLU, no defence, B=1, DLG"
    command = ["reproduce", "leaderboard", "--only", cell, "--samples", "1", "--engine", "local"]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert INSTALL in " ".join(done.output.split())


def test_a_folder_of_that_name_is_not_breaching(tmp_path, monkeypatch):
    (tmp_path / "breaching").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in [name for name in sys.modules if name.split(".")[0] == "breaching"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra, match="not installed"):
        breaching()
    sys.modules.pop("breaching", None)


@pytest.mark.parametrize(("operator", "imports"), [(OPERATOR, True), ("torchvision::x", False)])
def test_operators_that_torchvision_only_describes_are_declared(tmp_path, operator, imports):
    package = tmp_path / "breaching"
    package.mkdir()
    (package / "__init__.py").write_text(
        f"import torch\ntorch._C._dispatch_has_kernel_for_dispatch_key('{operator}', 'Meta')\n"
    )
    (package / "attacks.py").touch()
    program = "from softleak.paper.leaderboard import breaching; breaching()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )  # fmt: skip
    assert (done.returncode == 0) is imports, done.stderr
    assert imports or "MissingExtra: breaching does not import: " in done.stderr
