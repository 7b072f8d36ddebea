"""§4.3, §5.1: the input whose gradient comes nearest to the one that was shared."""

from softleak.matching.adam import Adam
from softleak.matching.label_sources import (
    GivenLabel,
    HardLabel,
    LabelSource,
    RandomLabel,
    RecoveredLabel,
)
from softleak.matching.lbfgs import LBFGS
from softleak.matching.minimum import Optimiser
from softleak.matching.objectives import L2, Cosine, Objective
from softleak.matching.priors import Box, Prior, TotalVariation
from softleak.matching.reconstruct import reconstruct
from softleak.matching.results import MatchStatus, Reconstruction, pass_on_interrupt
from softleak.matching.starts import Image, Noise, Start

__all__ = [
    "L2",
    "LBFGS",
    "Adam",
    "Box",
    "Cosine",
    "GivenLabel",
    "HardLabel",
    "Image",
    "LabelSource",
    "MatchStatus",
    "Noise",
    "Objective",
    "Optimiser",
    "Prior",
    "RandomLabel",
    "Reconstruction",
    "RecoveredLabel",
    "Start",
    "TotalVariation",
    "pass_on_interrupt",
    "reconstruct",
]
