"""This module holds gradient matching as a configured callable: settings first, model and shares at
the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from softleak.errors import OptionError
from softleak.matching.adam import Adam
from softleak.matching.arguments import expect, listed, one_each
from softleak.matching.attempts import AttemptSettings
from softleak.matching.batch_matcher import BatchMatcher
from softleak.matching.differentiable_model import DifferentiableModel
from softleak.matching.gauss_newton.newton_method import GaussNewton
from softleak.matching.label_sources import LabelSource, RecoveredLabel
from softleak.matching.lbfgs import LBFGS
from softleak.matching.minimum import Optimiser
from softleak.matching.objectives import Cosine, Objective
from softleak.matching.priors import Prior
from softleak.matching.proving import Prover
from softleak.matching.reconstruction import Reconstruction
from softleak.matching.starts import Noise, Start
from softleak.matching.stopping import Stopping, Watch
from softleak.matching.tasks import Job, Order
from softleak.results import BatchRecovery, Recovery
from softleak.share import GradientShare
from softleak.subject import Subject

POLISHES = 2  # attempts of a polish: a brisk one, and a cautious one if that gets stuck


def usual_objective(recovery: Recovery | BatchRecovery | None) -> Cosine:
    """Return the default objective. Samples of a batch are told apart by their features."""
    return Cosine(beta=2.0) if isinstance(recovery, BatchRecovery) else Cosine()


class MatchingSettings(TypedDict, total=False):
    """The fields of ``Matching``, as ``reconstruct`` takes them by keyword."""

    objective: Objective
    optimiser: Optimiser | GaussNewton | None
    priors: Sequence[Prior] | None
    label: LabelSource | Sequence[LabelSource]
    start: Start | Sequence[Start]
    restarts: int
    seconds: float | None
    memory: int
    dtype: torch.dtype | None
    compiled: bool
    attempts: AttemptSettings
    polish: GaussNewton | None


@dataclass(frozen=True)
class Matching:
    """Search for inputs whose gradients come nearest to those that were shared (§4.3, Eq. 8).

    All shares, attempts and label sources run as rows of one batch.

    Attributes:
        objective: the distance between gradients, ``Cosine()`` or ``L2()``.
        optimiser: the way to minimise it. None means the paper's for the objective: ``Adam()`` for
            the cosine, ``LBFGS()`` otherwise. ``GaussNewton()`` solves for the inputs of a smooth
            network and proves them; it has no use for an objective or for priors.
        polish: how inputs that were matched are solved for at the end. An input is replaced only
            by one that is proved. None leaves them as they are.
        priors: penalties of the input. None means total variation for images, and no penalty from
            a start that is near or for other inputs.
        label: where the label comes from, one source for all shares or one for each.
        start: where the input begins, one start for all shares or one for each.
        restarts: how many further attempts are made; all attempts share the evaluations of one.
        seconds: the time after which the best inputs so far are returned; None means no limit.
        memory: how many bytes one batch may take.
        dtype: the dtype to compute in; None means that of the model.
        compiled: whether evaluations are compiled, which is faster and rounds differently.
        attempts: how several attempts share their evaluations.

    Example:
        >>> from softleak.matching import L2, Matching
        >>> Matching(objective=L2(), restarts=2).restarts
        2
    """

    objective: Objective = field(default_factory=Cosine)
    optimiser: Optimiser | GaussNewton | None = None
    priors: Sequence[Prior] | None = None
    label: LabelSource | Sequence[LabelSource] = field(default_factory=RecoveredLabel)
    start: Start | Sequence[Start] = field(default_factory=Noise)
    restarts: int = 0
    seconds: float | None = None
    memory: int = 2 << 30
    dtype: torch.dtype | None = None
    compiled: bool = False
    attempts: AttemptSettings = field(default_factory=AttemptSettings)
    polish: GaussNewton | None = None

    def __post_init__(self) -> None:
        most = self.attempts.most_restarts
        if not 0 <= self.restarts <= most:
            raise OptionError(f"expected 0 to {most} restarts, got {self.restarts}")
        expect(self.objective, Objective, "an objective such as L2()")
        if self.optimiser is not None and not isinstance(self.optimiser, GaussNewton):
            expect(self.optimiser, Optimiser, "an optimiser such as Adam() or LBFGS()")
        if self.polish is not None:
            expect(self.polish, GaussNewton, "GaussNewton() or None")
        for label in listed(self.label):
            expect(label, LabelSource, "a label source such as RecoveredLabel() or GivenLabel(y)")
        for start in listed(self.start):
            expect(start, Start, "a start such as Noise() or Image(x)")

    @property
    def used_optimiser(self) -> Optimiser:
        """The optimiser that was given, or the paper's for the objective."""
        given = None if isinstance(self.optimiser, GaussNewton) else self.optimiser
        return given or (Adam() if isinstance(self.objective, Cosine) else LBFGS())

    def __call__(
        self,
        subject: Subject,
        shares: Sequence[GradientShare],
        recoveries: Sequence[Recovery | BatchRecovery | None] | None = None,
        *,
        watch: Watch | None = None,
    ) -> tuple[Reconstruction, ...]:
        """Reconstruct the input of every share.

        Args:
            subject: the model made ready. Its ``said_shape`` counts for all shares; without one,
                each share's own shape counts.
            shares: what was sent. A share that cannot be matched gets a status that says why.
            recoveries: what was recovered from each share, in the same order.
            watch: a handle to end the run early or to show its progress.

        Returns:
            One ``Reconstruction`` per share, in order.
        """
        for share in shares:
            expect(share, GradientShare, "a GradientShare")
        count = len(shares)
        known = [None] * count if recoveries is None else recoveries
        expect(known, Sequence, "a sequence of recoveries")
        if len(known) != count:
            raise OptionError(f"expected one recovery per share ({count}), got {len(known)}")
        labels = one_each(self.label, count, "label source")
        starts = one_each(self.start, count, "start")
        orders = map(Order, shares, known, labels, starts)
        jobs = [order.job(subject, self.objective) for order in orders]
        # Fused attention kernels cannot be differentiated twice; the plain one can.
        with sdpa_kernel(SDPBackend.MATH):
            return self._matched(subject, jobs, watch)

    def _matched(
        self, subject: Subject, jobs: Sequence[Job | Reconstruction], watch: Watch | None
    ) -> tuple[Reconstruction, ...]:
        """Return the answers in order; jobs of one kind run in one batch."""
        found = {i: job for i, job in enumerate(jobs) if isinstance(job, Reconstruction)}
        kinds: dict[object, dict[int, Job]] = {}
        for i, job in enumerate(jobs):
            if isinstance(job, Job):
                kinds.setdefault(job.kind, {})[i] = job
        if isinstance(self.optimiser, GaussNewton):
            prover = self._prover(self.optimiser, subject, self.restarts + 1, watch)
            every = [pair for kind in kinds.values() for pair in kind.items()]
            return tuple(
                (found | {i: prover.run(job) for i, job in every})[i] for i in range(len(jobs))
            )
        if kinds:
            matcher = self._matcher(subject, len(jobs) - len(found), watch)
            for batch in kinds.values():
                found |= dict(zip(batch, matcher.run(list(batch.values())), strict=True))
                if self.polish is not None:
                    prover = self._prover(self.polish, subject, POLISHES, watch)
                    found |= {i: prover.polish(job, found[i]) for i, job in batch.items()}
        return tuple(found[i] for i in range(len(jobs)))

    def _matcher(self, subject: Subject, count: int, watch: Watch | None) -> BatchMatcher:
        """Return what runs the batches of ``count`` jobs."""
        optimiser = self.used_optimiser
        dtype = self.dtype or next(iter(subject.parameters.values())).dtype
        model = DifferentiableModel.of(subject.model, subject.head, dtype)
        return BatchMatcher(
            model, self.objective, self.priors, optimiser, self.restarts + 1, self.attempts,
            self.compiled, self.memory,
            Stopping(optimiser.evaluations * count, self.seconds, watch),
        )  # fmt: skip

    def _prover(
        self, method: GaussNewton, subject: Subject, attempts: int, watch: Watch | None
    ) -> Prover:
        """Return what solves jobs by Gauss–Newton, within its own time or that of the run."""
        limits = [limit for limit in (self.seconds, method.seconds) if limit is not None]
        stopping = Stopping(method.evaluations * attempts, min(limits, default=None), watch)
        return Prover(method, subject, attempts, stopping)
