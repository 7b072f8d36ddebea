"""The paper's methods as baselines: Algorithm 1 and 2, iDLG and the bias ratio.

Attacks to compare with, not to audit with: they converge or not by their own loss, and a loss
below the threshold is no proof. ``softleak.recover_label`` is the one that says what it proves.
"""

from softleak.labels.classic.bias import bias_ratio
from softleak.labels.classic.combined import LBFGSThenPSO
from softleak.labels.classic.idlg import idlg
from softleak.labels.classic.lbfgs import LBFGSSearch, Skip
from softleak.labels.classic.losses import Loss, MeanSquare, NegativeMass, Variance
from softleak.labels.classic.objectives import Evaluation, FullHead, Objective, Vectorised
from softleak.labels.classic.presets import (
    PUBLISHED_MIXUP,
    PUBLISHED_NOISE,
    PUBLISHED_SMOOTHING,
)
from softleak.labels.classic.pso import PSOSearch
from softleak.labels.classic.results import ClassicResult, Outcome
from softleak.labels.classic.swarm import Swarm

__all__ = [
    "PUBLISHED_MIXUP",
    "PUBLISHED_NOISE",
    "PUBLISHED_SMOOTHING",
    "ClassicResult",
    "Evaluation",
    "FullHead",
    "LBFGSSearch",
    "LBFGSThenPSO",
    "Loss",
    "MeanSquare",
    "NegativeMass",
    "Objective",
    "Outcome",
    "PSOSearch",
    "Skip",
    "Swarm",
    "Variance",
    "Vectorised",
    "bias_ratio",
    "idlg",
]
