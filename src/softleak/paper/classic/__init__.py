"""The paper's methods as baselines: Algorithm 1 and 2, iDLG and the bias ratio.

These attacks are for comparison, not for an audit. Each ends by its own criterion, and a loss below
a threshold proves nothing. ``softleak.recover_label`` says what it proves.
"""

from softleak.paper.classic.methods import (
    ClassicOutcome,
    ClassicResult,
    Evaluation,
    FullHead,
    Loss,
    MeanSquare,
    NegativeMass,
    ScalarObjective,
    Variance,
    Vectorised,
    bias_ratio,
    idlg,
)
from softleak.paper.classic.search import (
    PUBLISHED_MIXUP,
    PUBLISHED_NOISE,
    PUBLISHED_SMOOTHING,
    LBFGSSearch,
    LBFGSThenPSO,
    PSOSearch,
    Skip,
    Swarm,
)

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
