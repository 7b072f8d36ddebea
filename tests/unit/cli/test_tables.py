from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

import softleak as sl
from softleak.audit import Audit, NamedShare, Options, audit_shares
from softleak.core.subject import Subject
from softleak.paper import data
from softleak.present.terminal import audit_table

EVIDENCE = "vit.layernorm.bias: a bias gradient, passed through a piecewise linear activation"


@pytest.fixture(scope="module")
def mixed(trained, draw):
    """An audit of two samples at once, scored, with long names and columns of every kind."""
    (one,), (other,) = draw(data.Mixup(), 1), draw(data.Hard(), 1)
    first, second = (sl.capture(trained, s.x, s.y) for s in (one, other))
    both = sl.GradientShare({n: first[n] + second[n] for n in first}, (3, 32, 32))
    share = NamedShare("before.safetensors → after.safetensors", both)
    subject = Subject.of(trained, (3, 32, 32))
    (report,) = audit_shares(subject, [share], Options(inputs=False, views=False))
    score = SimpleNamespace(label_error=float("inf"), psnr=None, recognisable=None)
    return Audit((replace(report, score=score),), evidence=(EVIDENCE, EVIDENCE))


def written(audit: Audit, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(audit_table(audit))
    return console.file.getvalue()


def test_at_eighty_columns_no_word_is_cut(mixed):
    said = written(mixed, 80)
    assert max(map(len, said.splitlines())) <= 80
    for word in ("share", "label", "recovered", "feature", "input", "classes", "L1", "PSNR"):
        assert word in said.splitlines()[2]
    assert "proved" in said
    assert "attacked" in said
    assert f"evidence: {EVIDENCE}; {EVIDENCE}" in " ".join(said.split())


def test_what_cannot_be_scored_is_a_dash(mixed):
    assert "inf" not in written(mixed, 200)
    assert "–" in written(mixed, 200)


def test_no_update_is_an_empty_table():
    assert "recovered" in written(Audit(()), 80)
