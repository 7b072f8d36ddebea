"""§3.3: L-BFGS first, the swarm where it fails."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import nn

from softleak.head import Head
from softleak.labels.classic.lbfgs import LBFGSSearch
from softleak.labels.classic.pso import PSOSearch
from softleak.labels.classic.results import ClassicResult, Outcome
from softleak.share import GradientShare


@dataclass(frozen=True)
class LBFGSThenPSO:
    """Algorithm 1, then Algorithm 2 if it did not converge. A false minimum below the threshold
    ends the search, as it must: nothing but the truth would tell it from the right one.
    """

    lbfgs: LBFGSSearch = field(default_factory=LBFGSSearch)
    pso: PSOSearch = field(default_factory=PSOSearch)

    def __call__(
        self, model: nn.Module, share: GradientShare, *, head: str | Head | None = None
    ) -> ClassicResult:
        """The label behind one share."""
        first = self.lbfgs(model, share, head=head)
        if first.converged or first.outcome is Outcome.ZERO_GRADIENT:
            return first
        second = self.pso(model, share, head=head)
        return replace(second, evaluations=first.evaluations + second.evaluations)
