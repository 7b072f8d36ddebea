"""Why an answer is what it is, as data: a kind, and the numbers and names that belong to it.

``present.sentences`` has a sentence for each kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TypeAlias


class Why(Enum):
    """What a finding can rest on, or why there is none."""

    # of an attack on an input
    NOT_ASKED = auto()
    ONLY_SIGNS = auto()
    SEVERAL_MIXED = auto()
    NO_FEATURE = auto()
    NOT_RUN = auto()  # name, error
    OFFERS_NOTHING = auto()
    STRONGER_SUCCEEDED = auto()
    NOT_REAL_VALUED = auto()
    NO_FINITE_SOLUTION = auto()
    DETERMINED = auto()
    UNDETERMINED = auto()
    MATCHED = auto()  # several, misfit, agreement
    SOLVED = auto()  # several
    UNROLLED = auto()
    NOT_PROVED = auto()  # why
    NO_BETTER = auto()  # method
    NO_TIME = auto()
    NO_TIME_FOR_BATCH = auto()
    NO_SHAPE = auto()
    TOO_MANY_UNKNOWNS = auto()  # unknowns, most
    SAY_ONE_SAMPLE = auto()  # message
    # of the classes of several samples
    LABEL_READ = auto()
    NO_SIGN_ATTACK = auto()
    NO_SIGN_ATTACK_ON_SIGNS = auto()
    SIGNS_PROVE = auto()  # classes
    DECAY_UNDONE = auto()  # decay, message
    SCALE_UNKNOWN = auto()
    OTHERWISE = auto()  # classes
    NOT_ONE_STEP = auto()  # samples
    COUNTS_ESTIMATED = auto()
    TOO_FEW_SAMPLES = auto()  # least, samples
    PARTS = auto()  # parts: (class, mean, low, high) each; message
    PARTS_NOT_ESTIMATED = auto()  # error
    NOT_COUNTED = auto()  # why
    # of every sample of a batch
    NOT_SEVERAL = auto()
    SIGNS_OF_SEVERAL = auto()
    NOT_ATTACKED = auto()  # why
    # of what the share looks like
    SIGN_PATTERN = auto()
    DROPOUT = auto()  # layers
    DECAY_SHOWS = auto()  # decay


@dataclass(frozen=True)
class Reason:
    """One reason with the numbers and names that belong to it."""

    kind: Why
    fields: tuple[tuple[str, object], ...] = ()
    notes: tuple[Told, ...] = ()  # further remarks

    def __str__(self) -> str:
        """Return the reason in words."""
        from softleak.present.sentences import sentence  # above this layer, where words are made

        return sentence(self)

    def noting(self, *notes: Told) -> Reason:
        """Return the reason with further remarks."""
        return replace(self, notes=(*self.notes, *notes))


Told: TypeAlias = Reason | str  # a string is a caller's own, or what an exception said


def because(kind: Why, **fields: object) -> Reason:
    """Return a reason with its fields."""
    return Reason(kind, tuple(fields.items()))
