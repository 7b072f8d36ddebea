"""No code reads a sentence to decide anything, and no finished sentence is edited."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.integration.modules import MODULES, SOURCE, tree_of

# What holds a sentence or a phrase, wherever it stands: a variable, a field or a property.
HOLDERS = frozenset({
    "explanation", "headline", "hint", "message", "phrase", "reason", "refusal", "remark", "said",
    "sentence", "told", "verdict", "why", "words",
})  # fmt: skip
# What reads the characters of a text, or returns another text in its place.
EDITS = frozenset({
    "capitalize", "casefold", "count", "endswith", "expandtabs", "find", "index", "lower", "lstrip",
    "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition",
    "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "title", "translate", "upper",
})  # fmt: skip
PATTERNS = frozenset({"findall", "finditer", "fullmatch", "match", "search", "sub", "subn"})
# Marks options of the command in a page, and changes no word.
MARKUP = {"present.page": "OPTION.sub"}


def makers() -> frozenset[str]:
    """The functions and properties of the room of words that return a sentence."""
    found = set()
    for path in (SOURCE / "present").glob("*.py"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef) and isinstance(node.returns, ast.Name):
                found |= {node.name} if node.returns.id == "str" else set()
    return frozenset(found - {"class_name", "data_uri", "asset", "render", "fill", "__str__"})


MAKERS = makers()


def is_sentence(node: ast.AST) -> bool:
    """Whether an expression is a sentence: one that is held, made here, or just being made."""
    if isinstance(node, ast.Name):
        return node.id in HOLDERS
    if isinstance(node, ast.Attribute):
        return node.attr in HOLDERS
    if isinstance(node, ast.Call):
        made = node.func.attr if isinstance(node.func, ast.Attribute) else None
        made = node.func.id if isinstance(node.func, ast.Name) else made
        return made in MAKERS or (made == "str" and any(map(is_sentence, node.args)))
    if isinstance(node, ast.JoinedStr):  # not a number that is written, or the name of a file
        return any(is_sentence(part) for value in node.values for part in ast.walk(value))
    return False


def read_or_edited(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that look into a sentence, or make another one out of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            kinds = (ast.In, ast.NotIn, ast.Eq, ast.NotEq)
            looks = any(isinstance(kind, kinds) for kind in node.ops)
            text = any(isinstance(s, ast.Constant) and isinstance(s.value, str) for s in sides)
            if looks and text and any(map(is_sentence, sides)):
                yield node
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            if isinstance(node.value, ast.Call | ast.JoinedStr) and is_sentence(node.value):
                yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            inside = [part for given in node.args for part in ast.walk(given)]
            pattern = node.func.attr in PATTERNS and any(map(is_sentence, inside))
            if pattern or (node.func.attr in EDITS and is_sentence(node.func.value)):
                yield node


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_sentence_is_read_or_edited(path):
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for node in read_or_edited(tree_of(path)):
        words = ast.unparse(node)
        assert MARKUP.get(name, "\0") in words, f"{path}:{node.lineno} {words}"


TEMPLATES = [*SOURCE.rglob("*.html")]
IN_TEMPLATES = re.compile(
    rf"""\|\s*(?:replace|truncate|trim|lower|upper|capitalize)\b(?<!name\|lower)
    |(?:{"|".join(sorted(HOLDERS))})\.(?:{"|".join(sorted(EDITS))})\(
    |["']\s+in\s+[\w.]*\b(?:{"|".join(sorted(HOLDERS))})\b""",
    re.VERBOSE,
)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_no_template_reads_or_edits_a_sentence(path):
    assert TEMPLATES
    for line in path.read_text().splitlines():
        for found in IN_TEMPLATES.finditer(line):
            start = line[: found.start()]
            assert start.endswith((".name", "status", "proved", "[:-4]")), line


@pytest.mark.parametrize(
    "code",
    [
        "if 'mixes several' in report.input.message: pass",
        "if error.reason == 'not applicable': pass",
        "done = 'noise' not in str(finding.reason)",
        "short = label_words(report, ()).replace(', proved without the truth', '')",
        "short = recovery.message.partition(';')[0]",
        "short = headline(report)[:40]",
        "short = str(found.told).removesuffix('.')",
        "short = f'{said} {more}'.strip()",
        "short = f'{headline(report)} {more}'.rstrip('.')",
        "short = re.sub('gives away', 'shows', verdict)",
        "short = PROVED.sub('', summary(audit))",
        "if PROVED.search(f'{summary(audit)}'): pass",
        "whole = why.capitalize()",
    ],
)
def test_such_code_would_be_found(code):
    assert list(read_or_edited(ast.parse(code))), code


@pytest.mark.parametrize(
    "code",
    [
        "if report.fit.explanation is Explanation.NONE: pass",
        "if Leak.LABEL in report.leaks: pass",
        "said = ' '.join([headline(report), *words])",
        "name = path.name.replace('.', '_')",
        "if finding.method.name == 'NONE': pass",
        "longest = max(len(word) for word in cell.split())",
    ],
)
def test_other_code_is_left_alone(code):
    assert not list(read_or_edited(ast.parse(code))), code
