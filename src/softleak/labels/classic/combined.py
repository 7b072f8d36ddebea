"""The combination of §3.3: L-BFGS first, and the swarm where it fails."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import nn

from softleak.head import Head
from softleak.labels.classic.classic_result import ClassicOutcome, ClassicResult
from softleak.labels.classic.pso import PSOSearch
from softleak.labels.classic.scalar_lbfgs import LBFGSSearch
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True)
class LBFGSThenPSO:
    """This is Algorithm 1, followed by Algorithm 2 if it did not converge.

    A false minimum below the threshold ends the search, because nothing but the truth would tell it
    from the right one.

    Attributes:
        lbfgs: the search that is tried first.
        pso: the search that is tried if the first did not converge.
    """

    lbfgs: LBFGSSearch = field(default_factory=LBFGSSearch)
    pso: PSOSearch = field(default_factory=PSOSearch)

    def __call__(
        self, model: nn.Module, share: GradientShare, *, head: str | Head | None = None
    ) -> ClassicResult:
        """Search the label behind one share.

        Args:
            model: the classifier the gradient was computed with.
            share: what the client sent.
            head: the name of the last linear layer, or a ``Head`` that the caller vouches for.

        Returns:
            The result of the search that converged, or of the second; evaluations are of both.
        """
        share.check_finite()
        ready = Subject.of(model, share.input_shape, head=head).head
        first = self.lbfgs(model, share, head=ready)
        if first.converged or first.outcome is ClassicOutcome.ZERO_GRADIENT:
            return first
        second = self.pso(model, share, head=ready)
        return replace(second, evaluations=first.evaluations + second.evaluations)
