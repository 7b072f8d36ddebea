"""Gradient matching searches for the input whose gradient is nearest to the share (§4.3, §5.1).

The modules, in reading order: ``reconstruction`` (the answer, and progress on a terminal),
``problems`` (the gradient as a function of an input, objectives and priors), ``tasks`` (labels and
starts), ``optimisers`` (Adam and L-BFGS), ``gauss_newton`` (solving and proving), ``reconstruct``
(the attack), ``choose`` (the strongest way) and ``unrolled`` (updates of several local steps).
"""

from softleak.matching.choose import reconstruct
from softleak.matching.gauss_newton.method import GaussNewton
from softleak.matching.optimisers import LBFGS, Adam, Optimiser
from softleak.matching.problems import L2, Cosine, Objective, Prior, TotalVariation
from softleak.matching.reconstruct import (
    Matching,
    MatchingSettings,
    reconstruct_many,
    usual_objective,
)
from softleak.matching.reconstruction import (
    Certificate,
    MatchProgress,
    Reconstruction,
    Watch,
    Way,
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
    "L2", "LBFGS", "Adam", "Certificate", "Cosine", "GaussNewton", "GivenLabel", "HardLabel",
    "Image", "LabelSource", "MatchProgress", "Matching", "MatchingSettings", "Noise", "Objective",
    "Optimiser", "Prior", "RandomLabel", "Reconstruction", "RecoveredLabel", "Start",
    "TotalVariation", "Watch", "Way", "reconstruct", "reconstruct_many",
    "usual_objective",
]  # fmt: skip
