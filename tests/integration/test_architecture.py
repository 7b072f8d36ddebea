"""Imports point one way, and truth stays out of the attacks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "softleak"
MODULES = sorted(SOURCE.rglob("*.py"))
ATTACKS = ("labels", "inversion", "matching", "defenses")
FORBIDDEN = ("data", "metrics", "models", "audit", "cli", "experiments", "report", "integrations")


def imports(path: Path) -> set[str]:
    """The softleak modules a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {name.removeprefix("softleak.") for name in found if name.startswith("softleak")}


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", [p for p in MODULES if part(p) in ATTACKS], ids=str)
def test_attacks_see_neither_data_nor_metrics_nor_models(path):
    seen = {name.split(".")[0] for name in imports(path)}
    assert not seen & set(FORBIDDEN)


@pytest.mark.parametrize(
    "path",
    [p for p in MODULES if part(p) in ("share", "head", "factors", "results", "capture")],
    ids=str,
)
def test_the_foundation_does_not_know_the_attacks(path):
    seen = {name.split(".")[0] for name in imports(path)}
    assert not seen & {*ATTACKS, *FORBIDDEN}


@pytest.mark.parametrize("path", [p for p in MODULES if part(p) in ATTACKS], ids=str)
def test_no_attack_takes_the_truth(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.arg):
            assert not node.arg.endswith("_true"), f"{path}:{node.lineno}"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_functions_fit_on_a_screen_and_modules_in_a_sitting(path):
    tree = ast.parse(path.read_text())
    assert len(path.read_text().splitlines()) <= 300
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{path}:{node.lineno} {node.name}"
