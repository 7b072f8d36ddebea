"""This package holds the paper's methods as baselines: Algorithm 1 and 2, iDLG and the bias ratio.

These attacks are for comparison, not for an audit. Each ends by its own criterion, and a loss below
a threshold proves nothing. ``softleak.recover_label`` says what it proves.
"""

from softleak.labels.classic.bias import bias_ratio
from softleak.labels.classic.classic_result import ClassicOutcome, ClassicResult
from softleak.labels.classic.combined import LBFGSThenPSO
from softleak.labels.classic.idlg import idlg
from softleak.labels.classic.losses import Loss, MeanSquare, NegativeMass, Variance
from softleak.labels.classic.presets import (
    PUBLISHED_MIXUP,
    PUBLISHED_NOISE,
    PUBLISHED_SMOOTHING,
)
from softleak.labels.classic.pso import PSOSearch
from softleak.labels.classic.scalar_lbfgs import LBFGSSearch, Skip
from softleak.labels.classic.scalar_objectives import (
    Evaluation,
    FullHead,
    ScalarObjective,
    Vectorised,
)
from softleak.labels.classic.swarm import Swarm

__all__ = [
    "PUBLISHED_MIXUP",
    "PUBLISHED_NOISE",
    "PUBLISHED_SMOOTHING",
    "ClassicOutcome",
    "ClassicResult",
    "Evaluation",
    "FullHead",
    "LBFGSSearch",
    "LBFGSThenPSO",
    "Loss",
    "MeanSquare",
    "NegativeMass",
    "PSOSearch",
    "ScalarObjective",
    "Skip",
    "Swarm",
    "Variance",
    "Vectorised",
    "bias_ratio",
    "idlg",
]
