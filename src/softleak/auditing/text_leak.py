"""This module says in a phrase how much of a text leaked: all of it, some words, or which occur."""

from __future__ import annotations

from collections.abc import Iterable

from softleak.inversion.texts.text_result import Certainty, Text

ONE_WORD = "1 word of its text, not its place"


def leaked_of_text(text: Text, several: bool = False) -> str:
    """Return what leaked of a text, or of several texts together, for a headline."""
    if text.certain:
        return "its text, every word in its place"
    used = len(text.places) - text.count(Certainty.EMPTY)
    sure, likely = text.count(Certainty.CERTAIN), text.count(Certainty.LIKELY)
    known, doubt = (sure, "") if sure else (likely, " in all likelihood")
    if known:
        return f"{known} of {used} words of its text in their place{doubt}"
    count = len(text.words)
    if several:
        words = "1 word" if count == 1 else f"{count} words"
        return f"{words} of its texts (but not which text has which word)"
    return f"{count} words of its text, not their order" if count != 1 else ONE_WORD


def known_words(text: Text) -> str:
    """Return how many words of a text are known, for a cell of a table."""
    used = len(text.places) - text.count(Certainty.EMPTY)
    known = text.count(Certainty.CERTAIN, Certainty.LIKELY)
    return f"{known} of {used} words" if known else f"{len(text.words)} words, no order"


def leaked_of_texts(texts: Iterable[Text]) -> str:
    """Return what leaked of several texts, for a headline."""
    return "its text" if all(text.certain for text in texts) else "words of its text"
