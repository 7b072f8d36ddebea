"""A headline says how much of a text is known, not that the input itself is."""

from __future__ import annotations

from dataclasses import replace

from softleak.inversion.results import Certainty, Place, Text
from softleak.inversion.texts.span import FROM_SPAN
from softleak.present.words import known_words, leaked_of_text, leaked_of_texts

SURE, LIKELY, GUESS = Certainty.CERTAIN, Certainty.LIKELY, Certainty.GUESS


def text(*certainties: Certainty, words: tuple[int, ...] = ()) -> Text:
    places = tuple(Place(i, 7, certainty) for i, certainty in enumerate(certainties))
    return Text(places, words, False, "", "")


def test_a_headline_says_how_much_of_a_text_is_known() -> None:
    assert leaked_of_text(text(SURE, SURE)) == "its text, every word in its place"
    assert leaked_of_text(text(SURE, GUESS, GUESS)) == "1 of 3 words of its text in their place"
    assert "2 of 3 words" in leaked_of_text(text(LIKELY, LIKELY, GUESS))
    assert "in all likelihood" in leaked_of_text(text(LIKELY, LIKELY, GUESS))
    assert leaked_of_text(text(words=(3,))) == "1 word of its text, not its place"


def test_a_span_that_does_not_explain_the_share_says_nothing_of_the_length() -> None:
    part = replace(text(LIKELY), method=FROM_SPAN)
    assert leaked_of_text(part) == (
        "1 word of its text in its place in all likelihood (how long the text is is not known)"
    )
    assert known_words(part) == "1 of ? words"
    assert known_words(replace(part, explained=True)) == "1 of 1 words"


def test_several_texts_are_whole_or_in_parts() -> None:
    assert leaked_of_texts([text(SURE), text(SURE, SURE)], 2) == "their text"
    assert leaked_of_texts([text(SURE), text(SURE, GUESS)], 1) == "words of its text"


def test_a_cell_counts_the_words() -> None:
    assert known_words(text(SURE, LIKELY, GUESS, Certainty.EMPTY)) == "2 of 3 words"
    assert known_words(text(words=(3, 4))) == "2 words, no order"
