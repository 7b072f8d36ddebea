"""What a share of many samples still says of its classes: which are there, and how often each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from softleak.core.errors import LabelError
from softleak.core.factors import head_gradients, numerical_rank
from softleak.core.head import Head
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.noisy.features import features_of_noise

PRESENT_ROUNDINGS = 16.0  # an entry this many roundings below zero is negative


@dataclass(frozen=True, eq=False)
class Batch:
    """What a share of several samples, or of several local steps of SGD, still says.

    ``gradients`` are behind it at least: samples, or the same sample again in another step.
    ``present`` are classes proved to be in some label. ``counts`` (C,) is how often each class is
    estimated to occur, if the number of samples is stated.
    """

    gradients: int
    present: tuple[int, ...]
    counts: Tensor | None
    message: str


@dataclass(frozen=True, eq=False)
class BatchReader:
    """A model made ready to read batches, by the features it makes of noise."""

    head: Head
    features: Tensor  # (n, I); none if the model cannot be run

    @classmethod
    def of(cls, subject: Subject) -> BatchReader:
        """Make a model ready by running it on noise, if it is known what it takes."""
        return cls(subject.head, subject.once(features_of_noise))

    @cached_property
    def never_negative(self) -> bool:
        """Return whether no feature of any run was: a ReLU or a sigmoid is before the head."""
        return len(self.features) > 0 and bool((self.features >= 0).all())

    @cached_property
    def like_a_bias(self) -> Tensor | None:
        """Return a direction (I,) along which usual features have length one; a bias has such."""
        if not len(self.features):
            return None
        mean = self.features.mean(0)
        size = float(mean.square().sum())
        return mean / size if size > 0 else None

    def read(self, share: GradientShare, samples: int | None = None) -> Batch:
        """Return what is behind a share of a known scale, with counts if ``samples`` is stated."""
        if samples is not None and samples < 1:
            raise LabelError(f"expected one sample or more, got {samples}")
        (sent,) = head_gradients(self.head, [share])
        G = sent.double()
        error = _rounding(share, self.head.weight_name, self.head)
        if not bool((G.sum(0).abs() <= error * len(G) ** 0.5).all()):
            noisy = "the head's gradient carries noise: neither samples nor classes proved"
            return Batch(1, (), None, noisy)
        relative = share.resolution(self.head.weight_name, self.head.dtype)
        least = max(numerical_rank(self.head, share, relative), 1)
        present = self._present(share, G, error)
        counts = None if samples is None else self.counts(share, present, samples)
        how = "" if present else f": {self._why_none(share)}"
        words = f"at least {least} gradients; {len(present)} classes proved{how}"
        return Batch(least, present, counts, words)

    def _present(self, share: GradientShare, G: Tensor, error: float) -> tuple[int, ...]:
        """Return classes j with a negative sum of p_j − y_j: some y_j is above zero."""
        name, negative = self.head.bias_name, torch.zeros(len(G), dtype=torch.bool)
        if self.head.has_bias and name in share:
            negative = share[name].double() < -_rounding(share, name, self.head)
        if self.never_negative:
            negative = negative | (G + error < 0).any(1)
        return tuple(negative.nonzero()[:, 0].tolist())

    def _why_none(self, share: GradientShare) -> str:
        """Return why no class was proved."""
        if self.never_negative or (self.head.has_bias and self.head.bias_name in share):
            return "no entry of the head's gradient is below zero by more than rounding"
        bias = "the gradient of the head's bias is missing"
        return (
            f"{bias if self.head.has_bias else 'the head has no bias'} and its features "
            f"{'may be negative' if len(self.features) else 'could not be looked at'}"
        )

    def counts(self, share: GradientShare, present: tuple[int, ...], samples: int) -> Tensor | None:
        """Return n with ``Σ_c n_c (p_c − e_c) = B δ``, p_c the probabilities of class c.

        ``present`` are the classes that are proved to be there, and ``samples`` is B.
        """
        G = head_gradients(self.head, [share])[0].double()
        delta = self._mean_delta(share, G)
        if delta is None:
            return None
        x = _class_features(G, delta)
        p = torch.softmax(self.head.logits(x) + self.head.b, -1)
        sums = torch.ones(1, len(G), dtype=torch.double)
        A = torch.cat([p.T - torch.eye(len(G), dtype=torch.double), sums])
        right = torch.cat([samples * delta, sums.new_tensor([samples])])
        n = torch.linalg.lstsq(A, right[:, None], driver="gelsd").solution[:, 0]
        least = torch.zeros(len(G), dtype=torch.double)
        least[list(present)] = 1
        return whole_counts(n.clamp_min(0).maximum(least), least, samples)

    def _mean_delta(self, share: GradientShare, G: Tensor) -> Tensor | None:
        """Return (C,) the mean of p − y: the bias's gradient, or that of the usual feature."""
        if self.head.has_bias and self.head.bias_name in share:
            return share[self.head.bias_name].double()
        return None if self.like_a_bias is None else G @ self.like_a_bias


def _class_features(G: Tensor, delta: Tensor) -> Tensor:
    """Return (C, I) the mean feature of each class: its own row's, if its samples dominate it."""
    own = delta < 0
    if not bool(own.any()):
        own = delta == delta.min()
    x = G / torch.where(own, delta, 1.0)[:, None]
    everyone = (x * torch.where(own, delta, 0.0)[:, None]).sum(0) / delta[own].sum()
    return torch.where(own[:, None], x, everyone)


def _rounding(share: GradientShare, name: str, head: Head) -> float:
    return PRESENT_ROUNDINGS * entry_error(share, name, head.dtype)


def entry_error(share: GradientShare, name: str, dtype: torch.dtype) -> float:
    """Return the error of an entry of one gradient at most, by rounding and as it is stated."""
    return share.resolution(name, dtype) * float(share[name].abs().max()) + share.noise(name)


def whole_counts(n: Tensor, least: Tensor, samples: int) -> Tensor:
    """Return whole numbers nearest to n that sum to ``samples``, by largest remainders."""
    if int(least.sum()) >= samples:
        return least.long()
    rest = n - least
    free = samples - int(least.sum())
    rest = rest * free / rest.sum() if float(rest.sum()) > 0 else rest + free / len(n)
    floor = rest.floor()
    order = (rest - floor).argsort(descending=True)
    floor[order[: free - int(floor.sum())]] += 1
    return (floor + least).long()
