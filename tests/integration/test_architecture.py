"""Imports point one way, and truth stays out of the attacks."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.modules import MODULES, SOURCE, tree_of

ATTACKS = ("labels", "inversion", "batches", "matching", "defenses", "resimulation", "numerics")
# Every room from the lowest to the highest; a module imports from its own room and those below.
# A name stands for a folder or for one module of it; the longest name that fits decides.
ROOMS: dict[str, tuple[str, ...]] = {
    "foundations": (
        "_version", "_moved", "core.errors", "core.vocabulary", "core.input_spec",
        "numerics.least_squares",
    ),
    "files": ("io",),
    "core": ("core", "io.weights"),
    "numerics": ("numerics",),
    "resimulation": ("resimulation",),
    "labels": ("labels",),
    "inversion": ("inversion",),
    "batches": ("batches",),
    "matching": ("matching",),
    "defenses": ("defenses",),
    "bounds": ("bounds",),
    "audit": ("audit",),
    "present": ("present",),
    "guard": ("guard",),
    "endings": ("cli.exits",),
    "paper": ("paper",),
    "cli": ("cli",),
    "root": ("__init__", "__main__", "pytest_plugin"),
    "old paths": ("integrations",),
}  # fmt: skip
RANK = {room: rank for rank, room in enumerate(ROOMS)}
# Words are made in the highest room; a result asks for its own where a person reads it.
ASKS_FOR_WORDS = {
    ("audit.report", "present.page"),
    ("audit.report", "present.words"),
    ("core.results", "present.sentences"),
    ("core.fit", "present.fit"),
    ("core.knowledge", "present.fit"),
    ("bounds.claims", "present.bounds"),
    ("bounds.hidden", "present.bounds"),
}


def module_name(path: Path) -> str:
    """The dotted name of a file inside the package; the package's own is ``__init__``."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


NAMES = {module_name(path): path for path in MODULES}


def running(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes of a file without what only a type checker reads."""
    for node in tree.body:
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from ast.walk(node)


def imports(path: Path) -> set[str]:
    """The softleak modules a file imports anywhere in it, within functions too."""
    found: set[str] = set()
    for node in running(tree_of(path)):
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


def room(name: str) -> str:
    """Return the room of a module: that of the longest name in the table that fits."""
    names = {prefix: room for room, prefixes in ROOMS.items() for prefix in prefixes}
    fits = [p for p in names if name == p or name.startswith(f"{p}.")]
    return names[max(fits, key=len)]


@pytest.mark.parametrize("name", NAMES)
def test_every_module_imports_from_its_room_or_below(name):
    for other in imports(NAMES[name]) - {name}:
        if (name, other) not in ASKS_FOR_WORDS and other != name.rpartition(".")[0]:
            assert RANK[room(other)] <= RANK[room(name)], f"{name} imports {other}"


def test_nothing_but_the_command_line_imports_the_room_of_the_paper():
    inside = ("paper", "old paths", "cli")
    outside = [name for name in NAMES if room(name) not in inside]
    assert not [n for n in outside if any(room(o) == "paper" for o in imports(NAMES[n]))]


def test_no_module_imports_itself_by_a_detour():
    edges = {
        name: {o for o in imports(path) - {name} if (name, o) not in ASKS_FOR_WORDS}
        for name, path in NAMES.items()
        if name != "__init__"
    }
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


def test_no_two_types_share_a_name():
    found: Counter[str] = Counter()
    for path in MODULES:
        tree = tree_of(path)
        found.update(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    assert not [name for name, count in found.items() if count > 1]


def test_attacks_see_neither_truth_nor_data_nor_words():
    for name in [name for name in NAMES if name.split(".")[0] in ATTACKS]:
        above = ("audit", "present", "guard", "paper", "cli")
        assert not {room(other) for other in imports(NAMES[name])} & set(above), name


@pytest.mark.parametrize(
    "path", [p for n, p in NAMES.items() if n.split(".")[0] in ATTACKS], ids=str
)
def test_no_attack_takes_the_truth(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.arg):
            assert not node.arg.endswith("_true"), f"{path}:{node.lineno}"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_functions_fit_on_a_screen_and_modules_in_a_sitting(path):
    tree = tree_of(path)
    assert len(path.read_text().splitlines()) <= 700
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{path}:{node.lineno} {node.name}"


# What the package may be at most. Both numbers may only fall; 40,000 lines are wanted.
MOST_LINES, MOST_MODULES = 41_200, 170


def test_the_package_stays_small_enough_for_one_person():
    lines = sum(len(path.read_text().splitlines()) for path in MODULES)
    assert lines <= MOST_LINES
    assert len(MODULES) <= MOST_MODULES
    maps = [path for path in MODULES if path.name == "__init__.py"]
    assert all(len(path.read_text().splitlines()) <= 130 for path in maps)


def test_hooks_are_set_in_one_place():
    hooks = [path for path in MODULES if "register_forward" in path.read_text()]
    assert hooks == [SOURCE / "core" / "forward.py"]


OPENINGS = re.compile(r"(This|These|It) (module|package|class|holds|says|names|is|are|does)\b")


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_docstrings_open_with_what_is_returned_or_done(path):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, kinds):
            assert not OPENINGS.match(ast.get_docstring(node) or ""), (
                f"{path}:{node.body[0].lineno}"
            )
