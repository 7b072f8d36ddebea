"""This module reads a text from the gradients of word and position embeddings."""

from __future__ import annotations

from softleak.inversion.texts.text_plan import TextPlan
from softleak.inversion.texts.text_result import Certainty, Place, Text
from softleak.inversion.texts.word_places import PADDING, Placed, place_words
from softleak.inversion.texts.word_rows import FilledRows, filled_rows
from softleak.share import GradientShare

MOST_OPTIONS = 8  # tokens of which the best is still worth naming as a guess
FROM_EMBEDDINGS = "the gradients of the word and position embeddings"


def read_words(plan: TextPlan, share: GradientShare) -> FilledRows:
    """Return the rows of the word table's gradient that are not empty."""
    return filled_rows(share, plan.words, share[plan.words].dtype)


def read_embeddings(plan: TextPlan, share: GradientShare) -> Text:
    """Return the text of one sample, or what an update of several tells.

    Args:
        plan: the model's tables; it has positions.
        share: what the client sent; it holds both gradients.
    """
    assert plan.positions is not None
    words = read_words(plan, share)
    dtype = share[plan.positions].dtype
    places = filled_rows(share, plan.positions, dtype, words.noise)
    placed = place_words(
        words.value / plan.factor,
        places.value,
        words.errors() / abs(plan.factor),
        (words.noise / abs(plan.factor), places.noise),
        padded=plan.empty is not None,
    )
    noisy = bool(words.noise or places.noise)
    best = Certainty.CERTAIN if placed.explained and not noisy else Certainty.LIKELY
    found: dict[int, Place] = {}
    for k, row in enumerate(places.index.tolist()):
        found[row - plan.first] = _place(row - plan.first, k, placed, words, plan, best)
    last = max((p for p in found), default=-1)
    every = (found.get(p) or Place(p, None, Certainty.EMPTY) for p in range(last + 1))
    unclear = noisy or (words.crowded and not placed.explained)
    known = () if unclear else tuple(words.index.tolist())
    return Text(tuple(every), known, placed.explained, FROM_EMBEDDINGS, _said(placed, words, noisy))


def _place(
    position: int, k: int, placed: Placed, words: FilledRows, plan: TextPlan, best: Certainty
) -> Place:
    if k in placed.word:
        word = placed.word[k]
        if word == PADDING:  # or a word whose row the client withheld: nothing tells them apart
            return Place(position, plan.empty, Certainty.LIKELY)
        return Place(position, int(words.index[word]), best)
    options = tuple(int(words.index[w]) for w in placed.candidates.get(k, ()))
    if not 0 < len(options) <= MOST_OPTIONS:
        return Place(position, None, Certainty.UNKNOWN, options)
    return Place(position, options[0], Certainty.GUESS, options)


def _said(placed: Placed, words: FilledRows, noisy: bool) -> str:
    count, open_ = len(placed.word), len(placed.candidates)
    if not len(words.index):
        return "noise hides every word" if noisy else "no word has a gradient"
    if placed.explained and not noisy:
        return (
            f"the rows of {len(words.index)} words are the sums of the gradients at {count} places"
        )
    if noisy:
        return (
            f"the gradients of {len(words.index)} words exceed the noise of {words.noise:.2g} on "
            f"every entry, and tell the words of {count} {'place' if count == 1 else 'places'}; "
            "words whose gradient is smaller cannot be seen"
        )
    return (
        f"{len(words.index)} words occur; they account for the gradients of {count} places, not "
        f"of {open_} others: the update mixes several texts, or was changed on its way, or the "
        "places cannot be told apart"
    )
