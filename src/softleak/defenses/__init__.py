"""What a client does to its gradients before it sends them (§5.2).

``defense``: the usual ones and how they compose. ``dpsgd`` and ``flare_filters``: those of Opacus
and of NVIDIA FLARE, where these are installed.
"""

from softleak.defenses.defense import (
    Cast,
    Clip,
    Composed,
    Defense,
    GaussianNoise,
    Int8,
    LaplaceNoise,
    OnKept,
    PercentileNoise,
    Prune,
    Sign,
    Withhold,
    as_known,
    is_random,
)

__all__ = [
    "Cast", "Clip", "Composed", "Defense", "GaussianNoise", "Int8", "LaplaceNoise", "OnKept",
    "PercentileNoise", "Prune", "Sign", "Withhold", "as_known", "is_random",
]  # fmt: skip
