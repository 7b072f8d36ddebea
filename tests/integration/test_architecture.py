"""Imports point one way, and truth stays out of the attacks."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.modules import MODULES, SOURCE, tree_of

ATTACKS = ("labels", "inversion", "batches", "matching", "defenses")
# Every package and root module, from the lowest layer to the highest, and what it may import.
# Nothing may import what stands below it in this table, so that there is no cycle.
LAYERS: dict[str, set[str]] = {
    "_version": set(),
    "errors": set(),
    "vocabulary": set(),
    "page_writer": set(),
    # files
    "atomic": {"errors"},
    "untrusted_files": {"errors"},
    "input_spec": {"errors"},
    "tensor_files": {"errors", "atomic", "untrusted_files", "input_spec"},
    # what is sent, and by whom
    "local_training": {"errors"},
    "share": {"errors", "vocabulary", "input_spec", "tensor_files", "local_training"},
    "forward": {"errors", "input_spec"},
    "token_tables": {"input_spec"},
    "local_program": {"errors", "forward", "local_training"},
    "client": {
        "errors", "input_spec", "forward", "share", "token_tables", "local_training",
        "local_program",
    },
    # the model under attack, and what is known
    "head": {"errors"},
    "input_shapes": {"errors", "input_spec", "forward", "token_tables"},
    "verify": {"errors", "input_spec", "forward", "head", "input_shapes"},
    "subject": {"errors", "input_spec", "head", "input_shapes", "verify"},
    "families": {"errors"},
    "results": set(),
    "knowledge": {"errors", "families", "local_training", "results", "share"},
    "factors": {"errors", "head", "share"},
    # the attacks, and what is done against them
    "labels": {
        "errors", "vocabulary", "input_spec", "local_training", "local_program", "share",
        "forward", "client", "head", "input_shapes", "subject", "families", "results",
        "knowledge", "factors",
    },
    "inversion": {
        "errors", "input_spec", "share", "forward", "token_tables", "client", "head",
        "input_shapes", "subject", "results", "factors",
    },
    "batches": {
        "errors", "share", "forward", "client", "head", "input_shapes", "subject", "families",
        "results", "knowledge", "factors", "labels", "input_spec", "inversion",
    },
    "matching": {
        "local_program",
        "errors", "input_spec", "share", "forward", "head", "subject", "results", "factors",
    },
    "defenses": {"errors", "share"},
    # what audits and experiments need beside them
    "terminal_watch": {"matching"},
    "environment": {"_version"},
    "naming": {"errors", "tensor_files", "share"},
    "data": {"errors"},
    "models": {"errors", "tensor_files", "naming"},
    "metrics": {"errors", "results"},
    "sweep": {"errors", "atomic"},
    # from shares to verdicts
    "auditing": {
        "errors", "vocabulary", "page_writer", "untrusted_files", "input_spec", "tensor_files",
        "local_training",
        "share", "forward", "client", "head", "subject", "families", "results", "knowledge",
        "factors", "labels", "inversion", "batches", "matching", "defenses", "naming", "data",
        "models",
        "metrics",
    },
    # the paper's tables
    "experiments": {
        "errors", "atomic", "tensor_files", "share", "client", "head", "subject", "families",
        "results", "knowledge", "factors", "labels", "inversion", "batches", "matching",
        "defenses", "environment", "data", "models", "metrics", "sweep", "auditing",
    },
    # pages, commands and frameworks
    "report": {
        "_version", "errors", "vocabulary", "atomic", "untrusted_files", "knowledge", "families",
        "results", "labels", "inversion", "matching", "data", "metrics", "sweep", "auditing",
        "experiments",
    },
    "integrations": {
        "errors", "atomic", "local_training", "share", "client", "head", "subject", "knowledge",
        "labels", "defenses", "naming", "data", "auditing", "report", "vocabulary",
    },
    "cli": {
        "_version", "errors", "vocabulary", "atomic", "untrusted_files", "input_spec",
        "tensor_files", "local_training", "client", "head", "input_shapes", "subject",
        "knowledge", "labels", "inversion", "defenses", "environment", "naming", "data", "models",
        "sweep", "auditing", "experiments", "report",
    },
    # the public names, and the command
    "__init__": {
        "_version", "errors", "page_writer", "input_spec", "share", "client", "head", "subject",
        "families", "results", "knowledge", "labels", "inversion", "batches", "matching",
        "auditing", "report",
    },
    "__main__": {"cli"},
}  # fmt: skip


def module_name(path: Path) -> str:
    """The dotted name of a file inside the package; the package's own is ``__init__``."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


NAMES = {module_name(path): path for path in MODULES}


def imports(path: Path) -> set[str]:
    """The softleak modules a file imports anywhere in it, within functions too."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    mine = {n for n in found if n == "softleak" or n.startswith("softleak.")}
    seen = {name.removeprefix("softleak").lstrip(".") or "__init__" for name in mine}
    known = {name for name in seen if name in NAMES}
    # `from softleak import data` names a package, not what stands in the package's __init__.
    if "__init__" in known and not _uses_the_top(path):
        known -= {"__init__"}
    return known


def _uses_the_top(path: Path) -> bool:
    """Whether a file imports names of ``softleak`` itself, not only modules of it."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import) and any(a.name == "softleak" for a in node.names):
            return True
        names = node.names if isinstance(node, ast.ImportFrom) and node.module == "softleak" else []
        if any(alias.name not in NAMES for alias in names):
            return True
    return False


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_the_table_of_layers_has_every_part_and_points_one_way():
    assert set(LAYERS) == {part(path) for path in MODULES if path.name != "py.typed"}
    lower: set[str] = set()
    for name, allowed in LAYERS.items():
        assert allowed <= lower, f"{name} imports from a layer above it"
        lower.add(name)


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_every_module_imports_what_its_layer_may(path):
    own = part(path)
    seen = {name.split(".")[0] for name in imports(path)} - {own}
    assert seen <= LAYERS[own], f"{seen - LAYERS[own]} is not open to {own}"


def test_no_module_imports_itself_by_a_detour():
    edges = {name: imports(path) - {name} for name, path in NAMES.items() if name != "__init__"}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join((*path, name))
        if name in done:
            return
        for other in edges.get(name, ()):
            if not name.startswith(f"{other}."):  # a package's own __init__ is imported first
                visit(other, (*path, name))
        done.add(name)

    for name in edges:
        visit(name, ())


def test_no_two_modules_share_a_name():
    own = [path for path in MODULES if path.name != "__init__.py"]
    twice = [name for name, n in Counter(path.stem for path in own).items() if n > 1]
    assert not twice


def test_no_two_types_share_a_name():
    found: Counter[str] = Counter()
    for path in MODULES:
        tree = tree_of(path)
        found.update(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    assert not [name for name, count in found.items() if count > 1]


def test_attacks_see_neither_data_nor_metrics_nor_models():
    for name in ATTACKS:
        assert not LAYERS[name] & {"data", "metrics", "models", "auditing", "experiments"}


@pytest.mark.parametrize("path", [p for p in MODULES if part(p) in ATTACKS], ids=str)
def test_no_attack_takes_the_truth(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.arg):
            assert not node.arg.endswith("_true"), f"{path}:{node.lineno}"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_functions_fit_on_a_screen_and_modules_in_a_sitting(path):
    tree = tree_of(path)
    assert len(path.read_text().splitlines()) <= 300
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{path}:{node.lineno} {node.name}"
