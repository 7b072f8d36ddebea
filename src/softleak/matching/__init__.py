"""Gradient matching searches for the input whose gradient is nearest to the share (§4.3, §5.1)."""

from softleak.matching.adam import Adam
from softleak.matching.attempts import AttemptSettings
from softleak.matching.batches import reconstruct_batch
from softleak.matching.gauss_newton.certificate import Certificate
from softleak.matching.gauss_newton.newton_method import GaussNewton
from softleak.matching.label_sources import (
    GivenLabel,
    HardLabel,
    LabelSource,
    RandomLabel,
    RecoveredLabel,
)
from softleak.matching.lbfgs import LBFGS
from softleak.matching.line_search import WolfeSearch
from softleak.matching.method import Matching, MatchingSettings, usual_objective
from softleak.matching.minimum import Optimiser
from softleak.matching.objectives import L2, Cosine, Objective
from softleak.matching.priors import Box, Prior, TotalVariation
from softleak.matching.reconstruct import reconstruct, reconstruct_many
from softleak.matching.reconstruction import MatchStatus, Reconstruction
from softleak.matching.starts import Image, Noise, Start
from softleak.matching.stopping import MatchProgress, Watch

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
