"""Label families (§3.4): what is assumed of a label when only the head's gradient is known.

``contract`` states what a family has to offer and what it may offer, ``known`` and ``smoothed``
hold the families that softleak knows, and ``simplices`` describes a family as a union of simplices,
which is how a label behind noise is integrated.
"""

from softleak.families.contract import (
    Family,
    Integrable,
    Nested,
    Weighted,
    nearest_of,
    simpler_of,
    simplices_of,
)
from softleak.families.known import KNOWN_FAMILIES, AnyLabel, Mixed, OneHot
from softleak.families.simplices import Simplices
from softleak.families.smoothed import Smoothed, SmoothedMixed

__all__ = [
    "KNOWN_FAMILIES",
    "AnyLabel",
    "Family",
    "Integrable",
    "Mixed",
    "Nested",
    "OneHot",
    "Simplices",
    "Smoothed",
    "SmoothedMixed",
    "Weighted",
    "nearest_of",
    "simpler_of",
    "simplices_of",
]
