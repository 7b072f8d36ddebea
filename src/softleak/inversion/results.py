"""What an inversion says: the input behind a share, how certain it is, or why there is no way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from softleak.core.results import ShortRepr, message_lines
from softleak.numerics.least_squares import TINY

LARGEST_RESIDUAL = 100.0  # of a layer's misfit in its expected error: more, and rows contradict
SUFFICIENT_PSNR = 85.0  # in dB: an error of a seventieth of a grey level, where the quick pass ends


@dataclass(frozen=True)
class NoWay:
    """Why there is no way back from a model's gradients to its input."""

    reason: str


class Certainty(Enum):
    """How much is known of one place of a text. Only ``CERTAIN`` is a proof."""

    CERTAIN = "no other token explains the gradient"
    LIKELY = "the share carries noise, or was not explained as a whole: this token fits best"
    GUESS = "several tokens fit, or none does: this one fits best"
    UNKNOWN = "no token could be told"
    EMPTY = "the model did not use this place: it is padding"


@dataclass(frozen=True)
class Place:
    """One place of a text."""

    position: int  # its number, from 0, as the model counts positions
    token: int | None  # the token that stands there, None if it is empty or not known
    certainty: Certainty
    candidates: tuple[int, ...] = ()  # the tokens that may stand there, if it is not certain


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


@dataclass(frozen=True)
class LayerReport:
    """How well the equations ("rows") of one layer determined its input."""

    name: str  # the layer's name in the model
    rows: int  # how many rows there were
    unknowns: int  # how many entries the input has
    condition: float  # a lower bound of the condition number of the scaled normal matrix
    # The root mean square of the rows' misfits in units of their expected errors. It is about
    # one if all errors are as large as predicted.
    residual: float
    determined: bool  # whether the rows determined every direction of the input


@dataclass(frozen=True, eq=False, repr=False)
class Inversion(ShortRepr):
    """The input behind a share, with its predicted error.

    Attributes:
        input: The input, in the shape that the model takes, without the batch.
        error: The predicted standard error of each entry, in the same shape.
        layers: How well each layer determined its input, from the last layer to the first.
        pixel: What one unit of the input is worth in pixels of range one.
        message: What the input was computed from, and what stays open, where there is more to say.
        text: The words and their certainty, if the input is a text; ``input`` then holds ids.
        texts: The texts of a batch, in no order, where they were told apart; their words are
            likely, never certain.
        borne_out: Whether the model makes of the input what the share shows of it. If not, the
            equations agreed on something else, and no error is predicted.
    """

    input: Tensor
    error: Tensor
    layers: tuple[LayerReport, ...]
    pixel: Tensor
    message: str = ""
    text: Text | None = None
    texts: tuple[Text, ...] = ()
    borne_out: bool = True

    @property
    def determined(self) -> bool:
        """Tell whether the rows of every layer determined its input and agreed on it."""
        agreed = all(one.determined and one.residual < LARGEST_RESIDUAL for one in self.layers)
        return agreed and self.borne_out and bool(self.error.isfinite().all())

    @property
    def tokens(self) -> tuple[int | None, ...]:
        """Return the token at each place of a text; nothing if the input is not a text."""
        return () if self.text is None else self.text.tokens

    @property
    def psnr_predicted(self) -> float:
        """Return the PSNR in dB that ``error`` predicts, for pixels of range one; NaN if none."""
        return psnr_of(self.error, self.pixel) if self.borne_out else math.nan

    @property
    def sufficient(self) -> bool:
        """Tell whether another pass could hardly improve the input."""
        return self.determined and self.psnr_predicted >= SUFFICIENT_PSNR

    def _lines(self) -> Iterator[str]:
        certain = "determined" if self.determined else "not determined"
        found = f"{certain}, {self.psnr_predicted:.1f} dB predicted"
        if self.text is not None:
            found = f"{sum(token is not None for token in self.tokens)} tokens known"
        yield f"Inversion: an input {tuple(self.input.shape)}, {found}"
        yield from message_lines(self.message)


def psnr_of(error: Tensor, worth: Tensor) -> float:
    """Return the PSNR in dB of standard errors, a unit of which is worth ``worth`` pixels."""
    return -10 * math.log10(float((error * worth).square().mean()) + TINY)
