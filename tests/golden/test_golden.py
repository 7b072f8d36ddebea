"""Answers are those that were recorded: ``python -m tests.golden.record`` writes them."""

from __future__ import annotations

from functools import lru_cache

import pytest

from tests.golden.cases import ALL, CASES, answer, recorded
from tests.golden.compare import differences

_recorded = lru_cache(recorded)


@pytest.mark.parametrize(("kind", "name"), ALL, ids=[f"{kind}-{name}" for kind, name in ALL])
def test_the_answer_is_the_recorded_one(kind, name):
    found = list(differences(_recorded(kind)[name], answer(kind, name)))
    assert not found, "\n".join(found[:20])


@pytest.mark.parametrize("kind", CASES)
def test_every_case_is_recorded_and_no_other(kind):
    assert set(_recorded(kind)) == set(CASES[kind][0])
