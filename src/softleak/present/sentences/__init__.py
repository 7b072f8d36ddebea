"""The sentence of every reason: a table for each room, from kinds of reasons to words.

A row is a text whose braces name the reason's fields, or a function of these fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from softleak.core.results import Reason, Why
from softleak.present.sentences import audit

SENTENCES: dict[Why, str | Callable[..., Any]] = {**audit.SENTENCES}


def sentence(reason: Reason) -> str:
    """Return a reason in words, with its further remarks."""
    words = SENTENCES[reason.kind]
    fields = dict(reason.fields)
    said = words.format(**fields) if isinstance(words, str) else words(**fields)
    return "; ".join([said, *map(str, reason.notes)])
