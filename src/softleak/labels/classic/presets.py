"""The settings of the published code, where it and the text differ.

The searches' own defaults are the text's: coefficient 4, 200 particles, 30 iterations, no skip.
The code has ``Skip``, 500 particles, 40 iterations, wider intervals, and for mixup coefficient 2.
"""

from __future__ import annotations

from softleak.labels.classic.combined import LBFGSThenPSO
from softleak.labels.classic.lbfgs import LBFGSSearch, Skip
from softleak.labels.classic.losses import Variance
from softleak.labels.classic.pso import PSOSearch
from softleak.labels.classic.swarm import Swarm

_SWARM = Swarm(particles=500, iterations=40)

# Intervals end at 6, 10, 30, 50: the next would end at the bound itself, which is not below it.
PUBLISHED_SMOOTHING = LBFGSThenPSO(
    LBFGSSearch(skip=Skip()),
    PSOSearch(swarm=_SWARM, widths=(5.0, 4.0, 20.0)),
)

# Intervals end at 6, 16, 66.
PUBLISHED_MIXUP = LBFGSThenPSO(
    LBFGSSearch(loss=Variance(2), coefficient=2.0, skip=Skip()),
    PSOSearch(loss=Variance(2), coefficient=2.0, swarm=_SWARM, widths=(5.0, 10.0, 50.0)),
)

# Table 5: with noise no loss is below 1e-9, so the best of all intervals is taken: ``scalar`` and
# ``loss`` of a result that, by its own criterion, has not converged.
PUBLISHED_NOISE = PSOSearch(coefficient=1.0, widths=(4.0, 5.0), bound=10.5, threshold=0.0)
