"""This module says in words how large a part of a client's data each class is.

The client's local training is run on images that stand in for its data. Without such images there
is no interval to rely on, and nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeAlias

from softleak.client import Client
from softleak.errors import SoftleakError, in_a_line
from softleak.labels.local.proportions import ProportionReader, Proportions, StandIns
from softleak.local_training import LocalTraining
from softleak.share import GradientShare
from softleak.subject import Subject

Readers: TypeAlias = dict[tuple[LocalTraining, int, int], ProportionReader]


@dataclass(frozen=True)
class PartSettings:
    """These settings say which classes are listed."""

    least: float = 0.01  # the smallest estimate that is listed
    most: int = 10  # the largest number of classes that are listed


PARTS = PartSettings()


def parts_in_words(
    subject: Subject, share: GradientShare, samples: int | None, stand_ins: StandIns | None
) -> str:
    """Return the estimated parts of the classes with their intervals, or nothing.

    Args:
        subject: the model the client started from.
        share: ``before − after``, with the client in ``made_by``.
        samples: how many samples the client has.
        stand_ins: images with their classes that stand in for the client's.
    """
    training = share.made_by
    if stand_ins is None or training is None or samples is None or samples < 2:
        return ""
    if training.unknowns or not training.trains:
        return ""
    try:
        reader = _reader(subject, training, samples, stand_ins)
    except SoftleakError as error:
        return f"parts of the classes were not estimated: {in_a_line(error)}"
    return _written(reader.read(share))


def _reader(
    subject: Subject, training: LocalTraining, samples: int, stand_ins: StandIns
) -> ProportionReader:
    """Return the reader for a client's settings, made once for each subject."""
    made = subject.once(_readers)
    key = (training, samples, id(stand_ins))
    if key not in made:
        settings = {f.name: getattr(training, f.name) for f in fields(LocalTraining)}
        made[key] = ProportionReader.of(subject, Client(**settings), samples, stand_ins)
    return made[key]


def _readers(_: Subject) -> Readers:
    return {}


def _written(found: Proportions) -> str:
    order = found.mean.argsort(descending=True).tolist()[: PARTS.most]
    low, high = found.interval
    listed = ", ".join(
        f"class {i} {100 * float(found.mean[i]):.0f} % ({100 * float(low[i]):.0f} to "
        f"{100 * float(high[i]):.0f})"
        for i in order
        if float(found.mean[i]) >= PARTS.least
    )
    return f"parts of the classes, with 90 % intervals: {listed} ({found.message})"
