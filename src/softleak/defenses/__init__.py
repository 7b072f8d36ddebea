"""This package holds what a client does to its gradients before it sends them (§5.2)."""

from softleak.defenses.defense import (
    Cast,
    Clip,
    Composed,
    Defense,
    GaussianNoise,
    Int8,
    LaplaceNoise,
    OnKept,
    OpenDefense,
    PercentileNoise,
    Prune,
    Sign,
    Withhold,
    as_known,
    is_random,
)

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
