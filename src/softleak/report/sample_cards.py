"""This module prepares the samples of an update of several for the page: one card for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softleak.auditing.sample_findings import SamplesFinding
from softleak.auditing.sample_text import sample_words
from softleak.auditing.wording import class_name
from softleak.report.png import picture
from softleak.results import Status

CARD_BARS = 3  # the largest entries of a label that a card shows


@dataclass(frozen=True)
class SampleCard:
    """This is one sample of an update of several.

    Attributes:
        status: UNIQUE or AMBIGUOUS.
        words: the label and its certificate.
        bars: the largest entries of the label, each with the name of its class.
        picture: the input, if a layer gave it or a search ended at it.
        caption: what the picture is worth, since the status speaks of the label alone.
    """

    status: str
    words: str
    bars: tuple[tuple[str, float], ...]
    picture: str | None
    caption: str


def sample_cards(found: SamplesFinding, names: Sequence[str]) -> tuple[SampleCard, ...]:
    """Return a card for each sample that was found, those that are proved first."""
    pictures = [*map(picture, found.pictures), *[None] * len(found.samples)]
    caption = _caption(found)
    cards = []
    for one, image in zip(found.samples, pictures, strict=False):
        bars: tuple[tuple[str, float], ...] = ()
        if one.label is not None:
            top = one.label.topk(min(CARD_BARS, len(one.label)))
            entries = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            bars = tuple((class_name(i, names), min(max(value, 0.0), 1.0)) for i, value in entries)
        words = sample_words(one, names)
        cards.append(SampleCard(one.status.name, words, bars, image, caption))
    return tuple(sorted(cards, key=lambda card: card.status != Status.UNIQUE.name))


def _caption(found: SamplesFinding) -> str:
    """Return what the pictures of the samples are worth, which is the same of all."""
    if found.proved_inputs:
        return "the input, proved"
    if found.searched is None:
        return "the input, not proved"
    return "the input, a candidate" if found.inputs else "no success: the search ended here"
