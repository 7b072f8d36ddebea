"""This module holds how an attack on one share ended: one of four outcomes, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """These are the ways in which an attack can end. Only an attack that ran can fail."""

    SUCCEEDED = "succeeded"
    NO_SUCCESS = "tried without success"
    NOT_APPLICABLE = "not applicable"
    NOT_CARRIED_OUT = "not carried out"

    @classmethod
    def of(cls, succeeded: bool) -> Outcome:
        """Return the outcome of an attack that was carried out."""
        return cls.SUCCEEDED if succeeded else cls.NO_SUCCESS


@dataclass(frozen=True)
class Attempt:
    """This says how one attack on one share ended, and why in a phrase."""

    attack: str
    outcome: Outcome
    why: str
