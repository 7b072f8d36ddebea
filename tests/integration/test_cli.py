from __future__ import annotations

import re

from typer.testing import CliRunner

import softleak
from softleak.cli import app


def test_audit_of_the_embedded_images():
    done = CliRunner().invoke(app, ["audit", "--each", "2"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert done.output.count("UNIQUE") >= 8
    assert "8 of 8 labels follow uniquely" in done.output
    errors = [float(e) for e in re.findall(r"\d+e-\d+", done.output)]
    assert max(errors) < 1e-3


def test_version():
    done = CliRunner().invoke(app, ["--version"])
    assert done.output.strip() == f"softleak {softleak.__version__}"
