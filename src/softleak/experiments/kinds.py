"""The paper's augmentations, each with the family an attacker who knows of it assumes."""

from __future__ import annotations

from dataclasses import dataclass

import softleak as sl
from softleak import data


@dataclass(frozen=True)
class Kind:
    """A way labels are made."""

    name: str
    augmentation: data.Augmentation
    family: sl.Family


SMOOTHED = Kind("smoothed", data.Smoothing(), sl.Smoothed())
MIXED = Kind("mixed", data.Mixup(), sl.Mixed(2))
ONE_HOT = Kind("one-hot", data.Hard(), sl.OneHot())
