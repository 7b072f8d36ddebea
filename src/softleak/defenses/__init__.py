"""What a client does to its gradients before it sends them (§5.2): share in, share out."""

from softleak.defenses.clipping import Clip
from softleak.defenses.compression import Cast, Int8, Prune, Sign
from softleak.defenses.defense import Composed, Defense
from softleak.defenses.noise import GaussianNoise, LaplaceNoise

__all__ = [
    "Cast",
    "Clip",
    "Composed",
    "Defense",
    "GaussianNoise",
    "Int8",
    "LaplaceNoise",
    "Prune",
    "Sign",
]
