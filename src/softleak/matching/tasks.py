"""One reconstruction to be done: what was sent, the label to begin with, and where to begin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from softleak.core.errors import LabelError, OptionError, ShareError, SoftleakError
from softleak.core.factors import head_gradients
from softleak.core.head import Head
from softleak.core.results import BatchRecovery, Recovery, Status
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.matching.problems import DifferentiableModel, Objective, Targets
from softleak.matching.reconstruction import Reconstruction


@dataclass(frozen=True, eq=False)
class LabelStart:
    """The label that a reconstruction begins with."""

    value: Tensor  # a soft label (C,) that is kept, or logits of a free one; (B, C) for a batch
    free: bool | Tensor  # whether the label is optimised together with the input; (B,) for a batch

    @property
    def freed(self) -> Tensor:
        """Whether each label is optimised, as a tensor () or (B,)."""
        given = torch.as_tensor(self.free, device=self.value.device)
        return given.expand(self.value.shape[:-1])

    @property
    def logits(self) -> Tensor:
        """The logits an optimiser begins with; zeros without effect where the label is kept."""
        return torch.where(self.freed[..., None], self.value, 0.0)

    @property
    def kept(self) -> Tensor:
        """The labels that are kept; zeros without effect where the label is free."""
        return torch.where(self.freed[..., None], 0.0, self.value)


Recovered = Recovery | BatchRecovery | None  # what was recovered from a share, if anything was


@runtime_checkable
class LabelSource(Protocol):
    """A way to obtain a label from the head, a share, and what was recovered from it."""

    def start(self, head: Head, share: GradientShare, recovery: Recovered) -> LabelStart | None:
        """Return the label to begin with, or None if what was recovered does not hold one."""


@dataclass(frozen=True)
class RecoveredLabel:
    """The label recovered from the gradient (ours), or a free one from there (DLG+ours).

    Samples of a batch that were not found have free labels, which begin with every class alike.
    """

    free: bool = False  # whether the label is optimised from there on
    floor: float = 1e-6  # the least entry of a label, so that a free one has a finite logit

    def start(self, head: Head, share: GradientShare, recovery: Recovered) -> LabelStart | None:
        if isinstance(recovery, BatchRecovery):
            return self._batch(recovery)
        label = None if recovery is None else recovery.label
        if label is None:
            return None
        return LabelStart(label.clamp_min(self.floor).log() if self.free else label, self.free)

    def _batch(self, recovery: BatchRecovery) -> LabelStart | None:
        found = [one.label for one in recovery.samples if one.label is not None]
        if not found:
            return None
        own = torch.stack(found)
        own = own.clamp_min(self.floor).log() if self.free else own
        value = torch.cat([own, own.new_zeros(recovery.size - len(own), own.shape[1])])
        kept = 0 if self.free else len(own)
        return LabelStart(value, torch.arange(len(value), device=value.device) >= kept)


@dataclass(frozen=True)
class HardLabel:
    """The one-hot label of iDLG, whose class is that of the row with the lowest sum.

    The rows of the head's gradient are ``(p_i − y_i) x``. If the entries of the feature ``x``
    have a positive sum, as after sigmoids and ReLUs, the lowest sum belongs to the class with the
    largest ``y_i − p_i``, which is that of a hard label.
    """

    def start(self, head: Head, share: GradientShare, recovery: Recovered) -> LabelStart | None:
        lowest = head_gradients(head, [share])[0].double().sum(1).argmin()
        return LabelStart(nn.functional.one_hot(lowest, head.classes).double(), free=False)


@dataclass(frozen=True)
class RandomLabel:
    """Logits from N(0, 1), optimised with the input (DLG)."""

    seed: int = 1  # the seed of the logits; another one than that of the input

    def start(self, head: Head, share: GradientShare, recovery: Recovered) -> LabelStart | None:
        generator = torch.Generator().manual_seed(self.seed)
        return LabelStart(torch.randn(head.classes, generator=generator).double(), free=True)


@dataclass(frozen=True, eq=False)
class GivenLabel:
    """A label that somebody else knows."""

    label: Tensor  # the soft label (C,); or those of all samples (B, C), if the share is of a batch

    def start(self, head: Head, share: GradientShare, recovery: Recovered) -> LabelStart | None:
        if self.label.ndim not in (1, 2) or self.label.shape[-1] != head.classes:
            raise LabelError(
                f"expected a label of {head.classes} entries, got shape "
                f"{tuple(self.label.shape)}; give one soft label, or (B, {head.classes}) for "
                "a share of B samples"
            )
        return LabelStart(self.label.double(), free=False)


@runtime_checkable
class Start(Protocol):
    """A first iterate of the input."""

    @property
    def near(self) -> bool:
        """Whether the start is thought to be close to the answer, where a prior only harms."""

    def draw(self, shape: tuple[int, ...], attempt: int) -> Tensor:
        """Return an input of this shape, which is another one for every attempt."""


@dataclass(frozen=True)
class Noise:
    """Entries from N(0, 1), the same for every share, so that only the shares differ."""

    seed: int = 0  # the seed of the first attempt
    stride: int = 7919  # between seeds of attempts: large, so that near seeds do not coincide

    @property
    def near(self) -> bool:
        return False

    def draw(self, shape: tuple[int, ...], attempt: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + self.stride * attempt)
        return torch.randn(shape, generator=generator)


@dataclass(frozen=True, eq=False)
class Image:
    """An input that is near already; further attempts begin from noise."""

    input: Tensor  # the first iterate, of the shape of one input, without a batch dimension

    @property
    def near(self) -> bool:
        return True

    def draw(self, shape: tuple[int, ...], attempt: int) -> Tensor:
        if tuple(self.input.shape) != shape:
            raise OptionError(
                f"expected a start of shape {shape}, got {tuple(self.input.shape)}; give one "
                "input without a batch dimension"
            )
        if not bool(self.input.isfinite().all()):
            raise OptionError(
                "expected a start of finite numbers, got NaN or infinity; begin from "
                "Noise() instead"
            )
        return self.input if attempt == 0 else Noise().draw(shape, attempt)


@dataclass(frozen=True, eq=False)
class Job:
    """A share that can be matched."""

    share: GradientShare  # what was sent, at the scale of the loss
    shape: tuple[int, ...]  # the shape of one input, or that of a batch (B, …)
    label: LabelStart  # the label to begin with, or the labels of a batch
    feature: Tensor | None  # (I,), if the objective asks for it; (B, I) with NaN where not known
    start: Start  # where the input begins
    recovery: Recovered = None  # of the share, if there is one

    @property
    def batch(self) -> tuple[int, ...]:
        """The number of samples (B,) behind a share of a batch, or () for a single sample."""
        return tuple(self.label.value.shape[:-1])

    @property
    def sample_shape(self) -> tuple[int, ...]:
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


NO_GRADIENT = "every gradient is zero: any input the model is sure of matches it"


def job_of(
    subject: Subject, objective: Objective, share: GradientShare,
    recovery: Recovered, label: LabelSource, start: Start,
) -> Job | Reconstruction:  # fmt: skip
    """Return the job, or the answer that says why there is none; never raise for a share."""
    try:
        scale = _scale(recovery)
        shape = _checked_shape(share, subject, objective)
        if not all(bool(g.isfinite().all()) for g in share.values()):
            return Reconstruction(Status.NON_FINITE)
        if not any(bool(g.any()) for g in share.values()):
            return Reconstruction(Status.ZERO_GRADIENT, reason=NO_GRADIENT)
        sent = share if scale == 1.0 else share.scaled(1 / scale)
        first, feature = label.start(subject.head, sent, recovery), _feature(recovery)
        if first is None or (objective.beta and feature is None):
            return Reconstruction(Status.NO_LABEL)
        whole = (*first.value.shape[:-1], *shape)
        job = Job(sent, whole, first, feature if objective.beta else None, start, recovery)
        _check_sizes(job, subject)
    except SoftleakError as error:
        return Reconstruction(Status.UNFIT, reason=str(error))
    return job


def _scale(recovery: Recovered) -> float:
    """Return the factor that the share was multiplied by, as far as it was searched."""
    if isinstance(recovery, BatchRecovery):
        return recovery.samples[0].scale if recovery.samples else 1.0
    return 1.0 if recovery is None else recovery.scale


def _feature(recovery: Recovered) -> Tensor | None:
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


def _checked_shape(share: GradientShare, subject: Subject, objective: Objective) -> tuple[int, ...]:
    """Return the shape of an input; raise if the share holds no gradients the objective uses."""
    shape = subject.said_shape or share.input_shape
    if shape is None:
        raise ShareError("the share does not say the shape of its input; pass input_shape")
    if not isinstance(shape, tuple):
        raise ShareError(
            f"gradient matching moves real numbers, and the input is not one tensor of these "
            f"({shape})"
        )
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
    return shape


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
    """Return the targets of jobs of one kind, in the model's dtype and on its device."""

    def stacked(each: Iterable[Tensor]) -> Tensor:
        return torch.stack([one.to(model.like) for one in each])

    return Targets(
        tuple(
            factors[name].to(model.like) if name in factors
            else stacked(job.share[name] for job in jobs)
            for name in names
        ),
        stacked(model.like.new_zeros(1) if job.feature is None else job.feature for job in jobs),
        stacked(job.label.kept for job in jobs),
        torch.stack([job.label.freed.to(model.like.device) for job in jobs]),
    )  # fmt: skip
