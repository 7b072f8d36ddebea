"""This module holds what an audit is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from softleak.auditing.token_names import NO_NAMES, TokenNames
from softleak.data import Normalisation
from softleak.knowledge import Knowledge
from softleak.labels.local.proportions import StandIns

NOTHING_KNOWN = Knowledge()


@dataclass(frozen=True)
class Options:
    """This holds what an audit is asked for, and what is known beforehand.

    Attributes:
        knowledge: what is assumed of every share.
        inputs: whether inputs are attacked as well.
        seconds: how long gradients are matched per share, where a model cannot be inverted.
        views: whether the loss over the searched scalar is kept for the page.
        normalisation: how pixels became inputs, if images are to be shown as pixels.
        tokens: the words behind token ids, if texts are to be shown as words.
        stand_ins: images with their classes, on which local training is simulated to estimate how
            large a part of a client's data each class is; None estimates nothing.
    """

    knowledge: Knowledge = NOTHING_KNOWN
    inputs: bool = True
    seconds: float = 30.0
    views: bool = True
    normalisation: Normalisation | None = None
    tokens: TokenNames = NO_NAMES
    stand_ins: StandIns | None = None
