"""What is known of a text: the word at each place, and how certain it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Certainty(Enum):
    """How much is known of one place of a text. Only ``CERTAIN`` is a proof."""

    CERTAIN = "no other token explains the gradient"
    LIKELY = "the share carries noise, or was not explained as a whole: this token fits best"
    GUESS = "several tokens fit, or none does: this one fits best"
    UNKNOWN = "no token could be told"
    EMPTY = "the model did not use this place: it is padding"


@dataclass(frozen=True)
class Place:
    """One place of a text.

    Attributes:
        position: its number, from 0, as the model counts positions.
        token: the token that stands there, None if it is empty or not known.
        certainty: how much is known of it.
        candidates: the tokens that may stand there, if it is not certain.
    """

    position: int
    token: int | None
    certainty: Certainty
    candidates: tuple[int, ...] = ()


@dataclass(frozen=True)
class Text:
    """A text as it was read from a share.

    Attributes:
        places: its places in order; padding at the end is left out.
        words: the tokens that occur somewhere in the update for certain, in rising order.
        explained: whether one text explains all of the gradients that were looked at.
        method: what the words were read from, in a phrase.
        message: what was found and what stays open, in sentences.
    """

    places: tuple[Place, ...]
    words: tuple[int, ...]
    explained: bool
    method: str
    message: str

    @property
    def tokens(self) -> tuple[int | None, ...]:
        """Return the token at each place, None where there is none or it is not known."""
        return tuple(place.token for place in self.places)

    @property
    def certain(self) -> bool:
        """Return whether every place that the model used is certain."""
        used = [place for place in self.places if place.certainty is not Certainty.EMPTY]
        return bool(used) and all(place.certainty is Certainty.CERTAIN for place in used)

    def count(self, *certainties: Certainty) -> int:
        """Return how many places have one of these certainties."""
        return sum(place.certainty in certainties for place in self.places)
