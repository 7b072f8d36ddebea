"""One reconstruction to be done: what was sent, the label to begin with, and where to begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from softleak.errors import OptionError, ShareError
from softleak.head import Head
from softleak.matching.label_sources import LabelSource, LabelStart, Seen
from softleak.matching.network import Network
from softleak.matching.objectives import Objective
from softleak.matching.problems import Targets
from softleak.matching.results import MatchStatus
from softleak.matching.starts import Start
from softleak.results import Recovery
from softleak.share import GradientShare

SEED = 1  # of labels drawn, apart from that of the input


@dataclass(frozen=True, eq=False)
class Job:
    """``shape`` is that of the input; ``feature`` (I,) is there if the objective asks for it."""

    share: GradientShare
    shape: tuple[int, ...]
    label: LabelStart
    feature: Tensor | None
    start: Start

    @property
    def noise(self) -> float:
        """What the noise the share is known to carry amounts to, relative to its gradients."""
        size = sum(float(g.double().square().sum()) for g in self.share.values())
        own = sum(self.share.noise(name) ** 2 * g.numel() for name, g in self.share.items())
        return float((own / size) ** 0.5)

    @property
    def kind(self) -> tuple[tuple[str, ...], tuple[int, ...], bool]:
        """Jobs of one kind run in one batch."""
        return tuple(sorted(self.share)), self.shape, self.start.near


@dataclass(frozen=True, eq=False)
class Asked:
    """What is asked of all shares of a call."""

    model: nn.Module
    head: Head
    objective: Objective
    input_shape: tuple[int, ...] | None

    def job(
        self, share: GradientShare, recovery: Recovery | None, source: LabelSource, start: Start
    ) -> Job | MatchStatus:
        """The job of one share, or why there is none."""
        shape = self.input_shape or share.input_shape
        if shape is None:
            raise ShareError("the share does not say its input's shape; pass input_shape")
        self._check(share)
        if not all(bool(g.isfinite().all()) for g in share.values()):
            return MatchStatus.NON_FINITE
        if not any(bool(g.any()) for g in share.values()):
            return MatchStatus.ZERO_GRADIENT
        if recovery is not None and recovery.scale != 1.0:
            share = share.scaled(1 / recovery.scale)
        label = source.start(Seen(self.head, share, recovery), SEED)
        feature = None if recovery is None else recovery.feature
        if label is None or (self.objective.beta and feature is None):
            return MatchStatus.NO_LABEL
        return Job(share, shape, label, feature if self.objective.beta else None, start)

    def _check(self, share: GradientShare) -> None:
        known = dict(self.model.named_parameters())
        if not share.keys() & known.keys():
            raise ShareError("the share holds no gradient of the model's parameters")
        share.check_shapes(known)
        if self.objective.alpha == 0 and share.keys() & known.keys() == {self.head.weight_name}:
            raise OptionError(
                "with alpha=0 the head's weight gradient is left out, and the share holds no "
                "other; give an objective with a positive alpha"
            )


def targets(jobs: Sequence[Job], names: Sequence[str], network: Network) -> Targets:
    """Those of jobs of one kind, in the network's dtype and on its device."""
    like = next(iter(network.parameters.values()))
    sent = tuple(torch.stack([job.share[name].to(like) for job in jobs]) for name in names)
    features = [like.new_zeros(1) if job.feature is None else job.feature for job in jobs]
    nothing = torch.zeros(network.head.classes, dtype=torch.double)
    kept = [nothing if job.label.free else job.label.value for job in jobs]
    return Targets(
        sent,
        torch.stack([feature.to(like) for feature in features]),
        torch.stack([label.to(like) for label in kept]),
        torch.tensor([job.label.free for job in jobs], device=like.device),
    )


Each = TypeVar("Each")


def one_each(given: Each | Sequence[Each], count: int, what: str) -> list[Each]:
    """One for every share, of one for all or a list of as many."""
    if not isinstance(given, Sequence):
        return [given] * count
    if len(given) != count:
        raise OptionError(
            f"expected one {what} for all or one for each of {count} shares, got {len(given)}"
        )
    return list(given)
