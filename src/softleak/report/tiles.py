"""This module counts each kind of leak for the tiles at the top of a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from softleak.vocabulary import Leak, State

TILE_WORDS = {  # what each kind of leak is called, and when it counts
    Leak.LABEL: ("label", "recovered exactly, nearly, or as another reading of the same numbers"),
    Leak.CLASS: ("class", "every label that fits has the same class on top"),
    Leak.FEATURE: ("feature", "the input of the last layer, as the model saw it"),
    Leak.INPUT: ("input", "an image, computed or matched, of 20 dB or better, or words of a text"),
    Leak.COMPOSITION: ("class composition", "classes proved to be among the labels"),
}


@dataclass(frozen=True)
class Tile:
    """This says of how many updates something leaked, and of how many it was not attacked."""

    count: int
    total: int
    what: str
    note: str
    untried: int


def tiles(count: Callable[[Leak, State], int], total: int) -> list[Tile]:
    """Return a tile for each kind of leak.

    Args:
        count: tells of how many updates a kind of leak is in a state.
        total: the number of updates.
    """
    return [
        Tile(count(leak, State.LEAKED), total, *words, count(leak, State.NOT_ATTACKED))
        for leak, words in TILE_WORDS.items()
    ]
