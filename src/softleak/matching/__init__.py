"""Gradient matching searches for the input whose gradient is nearest to the share (§4.3, §5.1)."""

from softleak.matching.gauss_newton.method import GaussNewton
from softleak.matching.optimisers import LBFGS, Adam, AttemptSettings, Optimiser, WolfeSearch
from softleak.matching.problems import L2, Box, Cosine, Objective, Prior, TotalVariation
from softleak.matching.reconstruct import (
    Matching,
    MatchingSettings,
    reconstruct,
    reconstruct_batch,
    reconstruct_many,
    usual_objective,
)
from softleak.matching.reconstruction import (
    Certificate,
    MatchProgress,
    MatchStatus,
    Reconstruction,
    Watch,
)
from softleak.matching.tasks import (
    GivenLabel,
    HardLabel,
    Image,
    LabelSource,
    Noise,
    RandomLabel,
    RecoveredLabel,
    Start,
)

__all__ = [
    "L2",
    "LBFGS",
    "Adam",
    "AttemptSettings",
    "Box",
    "Certificate",
    "Cosine",
    "GaussNewton",
    "GivenLabel",
    "HardLabel",
    "Image",
    "LabelSource",
    "MatchProgress",
    "MatchStatus",
    "Matching",
    "MatchingSettings",
    "Noise",
    "Objective",
    "Optimiser",
    "Prior",
    "RandomLabel",
    "Reconstruction",
    "RecoveredLabel",
    "Start",
    "TotalVariation",
    "Watch",
    "WolfeSearch",
    "reconstruct",
    "reconstruct_batch",
    "reconstruct_many",
    "usual_objective",
]
