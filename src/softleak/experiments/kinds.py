"""The paper's augmentations, each with the family that an attacker who knows of it assumes."""

from __future__ import annotations

from dataclasses import dataclass

from softleak import data
from softleak.families import Family, Mixed, OneHot, Smoothed


@dataclass(frozen=True)
class AugmentationKind:
    """One way in which clients make their labels.

    Attributes:
        name: the name in tables and records.
        augmentation: the function that makes inputs and labels.
        family: the family of labels that the attacker assumes.
    """

    name: str
    augmentation: data.Augmentation
    family: Family


SMOOTHED = AugmentationKind("smoothed", data.Smoothing(), Smoothed())
MIXED = AugmentationKind("mixed", data.Mixup(), Mixed(2))
ONE_HOT = AugmentationKind("one-hot", data.Hard(), OneHot())
