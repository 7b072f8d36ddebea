"""Help and completion answer at once: nothing that computes is imported for them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from softleak.cli.doctor import may_have_gpu

SECONDS = 1.5  # of processor time, whatever else runs; generous: it takes 0.35 s
HEAVY = ("torch", "numpy", "scipy", "matplotlib", "jinja2")
CODE = """
import atexit, sys
atexit.register(lambda: sys.stderr.write("imported:" + ",".join(m for m in {heavy} if m in sys.modules)))
{code}
"""  # noqa: E501
COMMANDS = (
    (["--help"], "Find out what a shared gradient gives away"),
    (["audit", "--help"], "--share"),
    (["reproduce", "--help"], "table2"),
    (["train", "--help"], "resnet18_cifar"),
    (["--version"], "softleak"),
)


def run(code: str, *arguments: str, **environment: str) -> tuple[str, str, float]:
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(heavy=HEAVY, code=code), *arguments],
        capture_output=True, text=True, check=True, env={**os.environ, **environment},
    )  # fmt: skip
    after = os.times()
    seconds = sum(after[2:4]) - sum(before[2:4])  # of children, in user and system mode
    return done.stdout, done.stderr.rpartition("imported:")[2], seconds


@pytest.mark.parametrize(
    ("arguments", "words"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS]
)
def test_a_command_that_computes_nothing_starts_without_torch(arguments, words):
    output, imported, seconds = run("from softleak.cli import app; app()", *arguments)
    assert words in output
    assert imported == ""
    assert seconds < SECONDS


@pytest.mark.skipif(may_have_gpu(), reason="the doctor asks torch about a GPU")
def test_the_doctor_does_not_import_torch_either():
    output, imported, seconds = run("from softleak.cli import app; app()", "doctor")
    assert "extra images" in output
    assert imported == ""
    assert seconds < SECONDS


def test_completion_starts_without_torch():
    code = "from softleak.cli import app; app(prog_name='softleak')"
    output, imported, seconds = run(
        code, _SOFTLEAK_COMPLETE="complete_bash", COMP_WORDS="softleak au", COMP_CWORD="1"
    )
    assert output.split() == ["audit"]
    assert imported == ""
    assert seconds < SECONDS


def test_the_package_is_cheap_to_import_and_knows_its_names():
    output, imported, _ = run("import softleak as sl; print(set(sl.__all__) <= set(dir(sl)))")
    assert output.strip() == "True"
    assert imported == ""
