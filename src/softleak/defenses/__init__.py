"""This package holds what a client does to its gradients before it sends them (§5.2)."""

from softleak.defenses.clipping import Clip
from softleak.defenses.compression import Cast, Int8, OnKept, Prune, Sign
from softleak.defenses.defense import Composed, Defense, OpenDefense, as_known, is_random
from softleak.defenses.noise import GaussianNoise, LaplaceNoise, PercentileNoise
from softleak.defenses.withholding import Withhold

__all__ = [
    "Cast",
    "Clip",
    "Composed",
    "Defense",
    "GaussianNoise",
    "Int8",
    "LaplaceNoise",
    "OnKept",
    "OpenDefense",
    "PercentileNoise",
    "Prune",
    "Sign",
    "Withhold",
    "as_known",
    "is_random",
]
