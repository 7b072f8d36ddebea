"""Gates on a leaking and on a clean update: one call, the fixture, the action and the hook."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
import torch
import yaml

import softleak as sl
from softleak.audit import Options
from softleak.core.errors import LeakFound, ShareError
from softleak.core.knowledge import Knowledge
from softleak.io import Content, save
from softleak.paper import data, models
from softleak.pytest_plugin import LeakTester
from tests.conftest import ROOT
from tests.integration.audits import run

NOISE = 100.0  # the standard deviation that hides a gradient whose largest entries are near 1
LR = 0.1
NOISY = Options(Knowledge(noise=NOISE), inputs=False)


@pytest.fixture(scope="module")
def model():
    return models.trained_lenet()


@pytest.fixture(scope="module")
def sample():
    (drawn,) = data.samples(data.embedded(), data.Smoothing(), 1, 1, data.CIFAR10_NORM)
    return drawn


@pytest.fixture(scope="module")
def leaking(model, sample):
    return sl.capture(model, sample.x, sample.y)


@pytest.fixture(scope="module")
def clean(leaking):
    source = torch.Generator().manual_seed(5)
    noisy = {n: g + NOISE * torch.randn(g.shape, generator=source) for n, g in leaking.items()}
    return sl.GradientShare(noisy, input_shape=leaking.input_shape)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model, leaking, clean):
    """A folder with the weights before and after a step, and with both updates."""
    made = tmp_path_factory.mktemp("updates")
    before = model.state_dict()
    stepped = {n: t.double() - LR * leaking[n].double() for n, t in before.items()}
    contents = {"before": before, "after": stepped, "leaking": leaking, "clean": clean}
    for name, tensors in contents.items():
        save(made / f"{name}.safetensors", Content(dict(tensors)))
    return made


def test_one_call_audits_a_step_between_two_checkpoints(folder, sample):
    other = models.lenet()  # with other weights than those before the step
    ends = {end: folder / f"{end}.safetensors" for end in ("before", "after")}
    report = sl.audit(other, **ends, lr=LR, options=Options(inputs=False))
    assert float((report.label.recovery.label - sample.y).abs().sum()) < 1e-2
    with pytest.raises(LeakFound, match="the label must not leak, and did"):
        report.raise_for("label")


def test_the_step_may_begin_at_the_weights_of_the_model(model, leaking):
    after = {n: t.double() - LR * leaking[n].double() for n, t in model.state_dict().items()}
    report = sl.audit(model, after=after, lr=LR, options=Options(inputs=False))
    with pytest.raises(LeakFound, match="label"):
        report.raise_for("feature", "label")


@pytest.mark.parametrize("given", [(), ("share", "lr"), ("before",), ("share", "after")])
def test_an_audit_needs_one_update(model, leaking, given):
    every: dict[str, Any] = {
        "share": leaking, "lr": LR, "before": model.state_dict(), "after": model.state_dict(),
    }  # fmt: skip
    with pytest.raises(ShareError, match="needs one update"):
        sl.audit(model, **{name: every[name] for name in given})


def test_a_gate_is_open_where_nothing_it_names_leaked(model, clean):
    report = sl.audit(model, clean, options=NOISY)
    report.raise_for("label")
    with pytest.raises(LeakFound, match="nothing is known of the input"):
        report.raise_for("input")


def test_the_fixture_passes_a_clean_update_and_fails_a_leaking_one(model, leaking, clean):
    tester = LeakTester()
    assert not tester.assert_no_leak(model, dict(clean), stop={"label"}, options=NOISY).leaks
    with pytest.raises(pytest.fail.Exception, match="the label must not leak"):
        tester.assert_no_leak(model, leaking, stop={"label"}, options=Options(inputs=False))


def test_pytest_finds_the_fixture(tmp_path):
    (tmp_path / "test_update.py").write_text(
        "import softleak as sl, torch\n"
        "from softleak.paper import models\n"
        "def test_it(softleak):\n"
        "    model = models.trained_lenet()\n"
        "    share = sl.capture(model, torch.rand(3, 32, 32), torch.tensor([3]))\n"
        "    softleak.assert_no_leak(model, share, stop={'label'})\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "softleak.pytest_plugin", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "the label must not leak, and did" in done.stdout


def test_remarks_for_github_say_what_leaked_in_one_line_each(folder, tmp_path):
    done = run(
        "--model", "lenet", "--weights", folder / "before.safetensors", "--labels-only",
        "--share", folder / "leaking.safetensors", "--fail-on", "label",
        "--format", "github", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.exit_code == 3, done.output
    lines = done.stdout.splitlines()
    assert all(re.fullmatch("::(error|warning) title=[^:]+::.+", line) for line in lines), lines
    assert lines[0].startswith("::error title=leaking.safetensors%3A label leaked::")
    assert any(line.startswith("::warning title=leaking.safetensors%3A feature") for line in lines)


def steps(inputs: dict[str, str], outputs) -> tuple[int, str]:
    """Run the action's own scripts as a runner would; the last exit code, and what was printed."""
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    given = {name: one.get("default", "") for name, one in action["inputs"].items()} | inputs
    outputs.touch()
    printed, code = "", 0
    for step in action["runs"]["steps"]:
        if "run" not in step or "install" in step.get("if", ""):
            continue

        def value(found: re.Match[str]) -> str:
            if found[1].startswith("inputs."):
                return given[found[1].removeprefix("inputs.")]
            told = dict(line.split("=", 1) for line in outputs.read_text("utf-8").splitlines())
            return told[found[1].rpartition(".")[2]]

        env = {n: re.sub(r"\$\{\{ (\S+) \}\}", value, text) for n, text in step["env"].items()}
        path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            env=os.environ | env | {"GITHUB_OUTPUT": str(outputs), "PATH": path},
            capture_output=True, text=True,
        )  # fmt: skip
        printed, code = printed + done.stdout + done.stderr, done.returncode
    return code, printed


@pytest.mark.parametrize(("name", "options", "expected"), [
    ("leaking", "--labels-only", 3), ("clean", f"--labels-only --noise {NOISE}", 0),
])  # fmt: skip
def test_the_action_closes_the_gate_on_a_leaking_update_alone(
    folder, tmp_path, name, options, expected
):
    weights, share = folder / "before.safetensors", folder / f"{name}.safetensors"
    inputs = {
        "model": "lenet", "weights": str(weights), "share": str(share), "arguments": options,
        "out": str(tmp_path / "out"),
    }  # fmt: skip
    code, printed = steps(inputs, tmp_path / "outputs")
    assert code == expected, printed
    assert ("::error" in printed) is (expected == 3)
    assert (tmp_path / "out" / "softleak.sarif").is_file()


def test_the_action_takes_two_checkpoints(folder, tmp_path):
    ends = {end: str(folder / f"{end}.safetensors") for end in ("before", "after")}
    inputs = {
        **ends, "model": "lenet", "lr": str(LR), "fail-on": "label feature",
        "arguments": "--labels-only", "out": str(tmp_path / "out"),
    }  # fmt: skip
    assert steps(inputs, tmp_path / "outputs")[0] == 3


@pytest.mark.parametrize(("name", "options", "expected"), [
    ("leaking", (), 3), ("clean", ("--noise", NOISE), 0),
])  # fmt: skip
def test_the_hook_refuses_a_leaking_update_alone(folder, tmp_path, name, options, expected):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert not hook["pass_filenames"]
    command, *entry = shlex.split(hook["entry"])
    assert (command, entry.pop(0)) == ("softleak", "audit")
    done = run(
        *entry, "--model", "lenet", "--weights", folder / "before.safetensors",
        "--share", folder / f"{name}.safetensors", *options, "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.exit_code == expected, done.output
