"""One reconstruction to be done: what was sent, the label to begin with, and where to begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from softleak.errors import LabelError, OptionError, ShareError, SoftleakError
from softleak.matching.differentiable_model import DifferentiableModel
from softleak.matching.label_sources import LabelSource, LabelStart, Seen
from softleak.matching.objectives import Objective
from softleak.matching.problems import Targets
from softleak.matching.reconstruction import MatchStatus, Reconstruction
from softleak.matching.starts import Start
from softleak.results import BatchRecovery, Recovery
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True, eq=False)
class Job:
    """A share that can be matched.

    Attributes:
        share: what was sent, at the scale of the loss.
        shape: the shape of one input, or that of a batch (B, …).
        label: the label to begin with, or the labels of a batch.
        feature: the recovered feature (I,), if the objective asks for it; (B, I) of a batch, with
            NaN for samples that were not found.
        start: where the input begins.
        recovery: what was recovered from the share, if anything.
    """

    share: GradientShare
    shape: tuple[int, ...]
    label: LabelStart
    feature: Tensor | None
    start: Start
    recovery: Recovery | BatchRecovery | None = None

    @property
    def batch(self) -> tuple[int, ...]:
        """The number of samples (B,) behind a share of a batch, or () for a single sample."""
        return tuple(self.label.value.shape[:-1])

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Return the shape of one input."""
        return self.shape[len(self.batch) :]

    @property
    def noise(self) -> float:
        """The size of the noise the share is known to carry, relative to that of its gradients."""
        size = sum(float(g.double().square().sum()) for g in self.share.values())
        own = sum(self.share.noise(name) ** 2 * g.numel() for name, g in self.share.items())
        return float((own / size) ** 0.5)

    @property
    def kind(self) -> tuple[tuple[str, ...], tuple[int, ...], bool]:
        """What jobs must have in common to run in one batch."""
        return tuple(sorted(self.share)), self.shape, self.start.near


@dataclass(frozen=True, eq=False)
class Order:
    """What is asked for one share, before anybody has looked at it."""

    share: GradientShare
    recovery: Recovery | BatchRecovery | None
    label: LabelSource
    start: Start

    def job(self, subject: Subject, objective: Objective) -> Job | Reconstruction:
        """Return the job, or the answer that says why there is none; never raise for a share."""
        try:
            found = self._job(subject, objective)
        except SoftleakError as error:
            return Reconstruction(MatchStatus.UNFIT, reason=str(error))
        return Reconstruction(found) if isinstance(found, MatchStatus) else found

    def _job(self, subject: Subject, objective: Objective) -> Job | MatchStatus:
        shape = subject.said_shape or self.share.input_shape
        if shape is None:
            raise ShareError("the share does not say the shape of its input; pass input_shape")
        if not isinstance(shape, tuple):
            raise ShareError(
                f"gradient matching moves real numbers, and the input is not one tensor of these "
                f"({shape})"
            )
        _check_parameters(self.share, subject, objective)
        if not all(bool(g.isfinite().all()) for g in self.share.values()):
            return MatchStatus.NON_FINITE
        if not any(bool(g.any()) for g in self.share.values()):
            return MatchStatus.ZERO_GRADIENT
        recovery = self.recovery
        scale = _scale(recovery)
        share = self.share if scale == 1.0 else self.share.scaled(1 / scale)
        label = self.label.start(Seen(subject.head, share, recovery))
        feature = _feature(recovery)
        if label is None or (objective.beta and feature is None):
            return MatchStatus.NO_LABEL
        whole = (*label.value.shape[:-1], *shape)
        job = Job(share, whole, label, feature if objective.beta else None, self.start, recovery)
        _check_sizes(job, subject)
        return job


def _scale(recovery: Recovery | BatchRecovery | None) -> float:
    """Return the factor that the share was multiplied by, as far as it was searched."""
    if isinstance(recovery, BatchRecovery):
        return recovery.samples[0].scale if recovery.samples else 1.0
    return 1.0 if recovery is None else recovery.scale


def _feature(recovery: Recovery | BatchRecovery | None) -> Tensor | None:
    """Return the feature (I,) of a sample, or those of a batch (B, I): NaN where none is known."""
    if not isinstance(recovery, BatchRecovery):
        return None if recovery is None else recovery.feature
    found = [one.feature for one in recovery.samples if one.label is not None]
    like = next((one for one in found if one is not None), None)
    if like is None:
        return None
    unknown = torch.full_like(like, torch.nan)
    rows = [unknown if one is None else one for one in found]
    return torch.stack(rows + [unknown] * (recovery.size - len(rows)))


def _check_parameters(share: GradientShare, subject: Subject, objective: Objective) -> None:
    """Raise if the share does not hold gradients of the model that the objective uses."""
    ours = share.keys() & subject.parameters.keys()
    if not ours:
        raise ShareError(
            "the share holds no gradient of the model's parameters: expected names such as "
            f"{next(iter(subject.parameters))}, got {next(iter(share), 'none')}; check that the "
            "share is of this model, or rename its entries (share.renamed)"
        )
    share.check_shapes(subject.parameters)
    if objective.alpha == 0 and ours == {subject.head.weight_name}:
        raise OptionError(
            "with alpha=0 the head's weight gradient is left out, and the share holds no "
            "other; give an objective with a positive alpha"
        )


def _check_sizes(job: Job, subject: Subject) -> None:
    """Raise if the label, the feature or the start is not of the model's size."""
    head = subject.head
    if job.label.value.shape[-1] != head.classes:
        raise LabelError(
            f"expected a label of {head.classes} entries, got shape "
            f"{tuple(job.label.value.shape)}; recover it with this model"
        )
    if job.feature is not None and job.feature.shape != (*job.batch, head.W.shape[1]):
        raise ShareError(
            f"expected a feature of {head.W.shape[1]} entries, got shape "
            f"{tuple(job.feature.shape)}; recover it with this model"
        )
    drawn = tuple(job.start.draw(job.shape, 0).shape)
    if drawn != tuple(job.shape):
        raise OptionError(f"expected a start of shape {tuple(job.shape)}, got {drawn}")


def targets(
    jobs: Sequence[Job], names: Sequence[str], model: DifferentiableModel,
    factors: Mapping[str, Tensor] = MappingProxyType({}),
) -> Targets:  # fmt: skip
    """Return the targets of jobs of one kind, in the model's dtype and on its device.

    ``factors`` replace the gradients of these names.
    """
    like = model.like
    sent = tuple(
        factors[name].to(like)
        if name in factors
        else torch.stack([job.share[name].to(like) for job in jobs])
        for name in names
    )
    features = [like.new_zeros(1) if job.feature is None else job.feature for job in jobs]
    return Targets(
        sent,
        torch.stack([feature.to(like) for feature in features]),
        torch.stack([job.label.kept.to(like) for job in jobs]),
        torch.stack([job.label.freed.to(like.device) for job in jobs]),
    )
