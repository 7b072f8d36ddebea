"""Every public docstring begins with a whole line."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.integration.modules import MODULES, SOURCE, tree_of

MOST_PARAMETERS = 10


def documented(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Public names of a module, and their docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            name = getattr(node, "name", "module")
            text = ast.get_docstring(node)
            if text and not name.startswith("_"):
                yield name, text.split("\n\n")[0].replace("\n", " ")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_public_docstrings_begin_with_a_sentence(path):
    for name, first in documented(tree_of(path)):
        assert first[0].isupper() or first.startswith(("``", "softleak", "§")), f"{name}: {first}"
        assert first.rstrip().endswith((".", ":", "?")), f"{name}: {first}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_public_functions_have_few_parameters(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            given = node.args
            names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            count = len([name for name in names if name not in ("self", "cls")])
            count += (given.vararg is not None) + (given.kwarg is not None)
            assert count <= MOST_PARAMETERS, f"{path.name}:{node.lineno} {node.name}"
