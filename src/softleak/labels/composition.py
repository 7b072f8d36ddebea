"""What a share of many samples still says: signs alone, classes and counts, and if it is one step.

A neuron between a layer ``W`` with bias ``b`` and the head ``V`` that multiplies through (a ReLU,
with or without pooling) has, for any sample and at any one set of weights,

    Σ_k V_kj ∂L/∂V_kj = Σ_m W_jm ∂L/∂W_jm + b_j ∂L/∂b_j.

Steps that follow are taken at other weights and break it: an update Δ of several steps is off by
the products of their gradients, which are of the size of ``‖ΔV_j‖² − ‖ΔW_j‖² − Δb_j²``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.core.errors import LabelError
from softleak.core.factors import head_gradients, numerical_rank
from softleak.core.forward import forward_batch, random_tensor
from softleak.core.head import Head
from softleak.core.input_spec import Layout
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.noisy.features import features_of_noise

# What recognises a gradient of which only signs are left.
SIGN_PATTERN_ALIKE = 0.02  # relative: entries this close to the median are of one size
SIGN_PATTERN_MOST = 0.9  # the part of entries beside zero that has this size
SIGN_PATTERN_FEWEST = 12  # entries that can show a pattern


def is_sign_pattern(gradient: Tensor) -> bool:
    """Return whether nearly all entries have one size or are next to zero, and none is larger.

    A feature that is zero leaves entries of zero. With the decoupled weight decay of AdamW they are
    small numbers instead.
    """
    sizes = gradient.detach().double().abs().flatten()
    if _spread_out(sizes):
        return False
    sizes = sizes[sizes > 0]
    large = sizes[sizes > sizes.max() / 2] if len(sizes) else sizes
    if len(large) < SIGN_PATTERN_FEWEST:
        return False
    ratios = sizes / large.median()
    alike = (ratios - 1).abs() < SIGN_PATTERN_ALIKE
    nothing = ratios < SIGN_PATTERN_ALIKE
    none_larger = float(ratios.max()) < 1 + SIGN_PATTERN_ALIKE
    return none_larger and float((alike | nothing).double().mean()) >= SIGN_PATTERN_MOST


def _spread_out(sizes: Tensor) -> bool:
    """Return whether too many entries for a pattern lie between zero and the largest.

    It is a necessary condition without a median, at which nearly all gradients end.
    """
    if not sizes.numel():
        return False
    largest, slack = float(sizes.max()), SIGN_PATTERN_ALIKE
    low, high = slack * largest, (1 - slack) / (1 + slack) * largest
    between = int(((sizes > low) & (sizes < high)).sum())
    return between > (1 - SIGN_PATTERN_MOST) * sizes.numel()


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
            return Batch(
                1, (), None, "the head's gradient carries noise: neither samples nor classes proved"
            )
        relative = share.resolution(self.head.weight_name, self.head.dtype)
        least = max(numerical_rank(self.head, share, relative), 1)
        present = self._present(share, G, error)
        counts = None if samples is None else self.counts(share, present, samples)
        how = "" if present else f": {self._why_none(share)}"
        return Batch(
            least,
            present,
            counts,
            f"at least {least} gradients; {len(present)} classes proved{how}",
        )

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
    return PRESENT_ROUNDINGS * _error(share, name, head.dtype)


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


# What tests whether an update is one step.
# Relative: what float32 may leave of the equation on a model that obeys it.
ONE_STEP_TEST_HOLDS = 1e-3
ONE_STEP_TEST_SEEN = 0.1  # the part of a second step's products that has to stand out of rounding
# Of the largest rounding of an entry, adding up as independent ones do.
ONE_STEP_TEST_ROUNDINGS = 2.0
ONE_STEP_TEST_SAMPLES = 4  # random samples that the equation is tried on
ONE_STEP_TEST_SEED = 0  # the seed of these samples


@dataclass(frozen=True)
class OneStep:
    """Whether a share was found to be one step, and the reason."""

    proved: bool
    reason: str


@dataclass(frozen=True, eq=False)
class Balance:
    """The layer before the head for which the equation holds, by name, and the head."""

    head: Head
    layer: str

    @classmethod
    def of(cls, model: nn.Module, head: Head, shape: Layout | None) -> Balance | None:
        """Try every layer on noise; None if no layer obeys the equation or the model cannot run."""
        if not isinstance(shape, tuple):
            return None
        try:
            gradients = _of_noise(model, shape)
        except Exception:  # the model's own code may raise anything
            return None
        parameters = {n: p.detach() for n, p in model.named_parameters()}
        for name in reversed([n for n, m in model.named_modules() if hasattr(m, "weight")]):
            found = cls(head, name)
            if name != head.name and found._obeyed(parameters, gradients):
                return found
        return None

    def check(self, share: GradientShare, parameters: Mapping[str, Tensor], lr: float) -> OneStep:
        """Return whether the share, times the rate ``lr``, is one step from ``parameters``."""
        if any(name not in share for name in self._names(parameters)):
            return OneStep(False, "not all gradients that would show it were sent")
        parameters = {n: p.detach() for n, p in parameters.items()}
        left, error = self._left(parameters, share)
        if bool((left.abs() > error).any()):
            return OneStep(False, "it is not one plain step: there were more, or weight decay")
        second = lr * self._difference(share, share) / 2  # were it two equal steps
        if float(second.norm()) * ONE_STEP_TEST_SEEN < float(error.norm()):
            return OneStep(False, "rounding would hide a second step")
        return OneStep(True, "it is one step from the weights sent")

    def _names(self, parameters: Mapping[str, Tensor]) -> list[str]:
        mine = [f"{self.layer}.weight", f"{self.layer}.bias"]
        return [self.head.weight_name, *(name for name in mine if name in parameters)]

    def _left(
        self, parameters: Mapping[str, Tensor], share: GradientShare
    ) -> tuple[Tensor, Tensor]:
        """Return (J,) what is left of the equation, and what rounding may leave of it."""
        rounding = {n: _error(share, n, parameters[n].dtype) for n in self._names(parameters)}
        sizes = self._sums(
            {n: parameters[n].double().square() for n in rounding},
            {n: torch.full_like(parameters[n].double(), e**2) for n, e in rounding.items()},
        )
        return self._difference(parameters, share), ONE_STEP_TEST_ROUNDINGS * torch.stack(
            sizes
        ).sum(0).sqrt()

    def _difference(self, one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
        out, into = self._sums(one, other)
        return out - into

    def _sums(
        self, one: Mapping[str, Tensor], other: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return (J,) the products of both, summed for each neuron: in the head, in the layer."""
        into = [
            (one[n].double() * other[n].double()).flatten(1).sum(1)
            if one[n].dim() > 1 else one[n].double() * other[n].double()
            for n in (f"{self.layer}.weight", f"{self.layer}.bias") if n in one and n in other
        ]  # fmt: skip
        name = self.head.weight_name
        columns = (one[name].double() * other[name].double()).sum(0)
        return columns.reshape(len(into[0]), -1).sum(1), torch.stack(into).sum(0)

    def _obeyed(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> bool:
        weight = parameters[f"{self.layer}.weight"]
        if weight.dim() < 2 or self.head.W.shape[1] % len(weight):
            return False
        out, into = self._sums(parameters, gradients)
        size = float(out.norm() + into.norm())
        return size > 0 and float((out - into).norm()) <= ONE_STEP_TEST_HOLDS * size


def _error(share: GradientShare, name: str, dtype: torch.dtype) -> float:
    return share.resolution(name, dtype) * float(share[name].abs().max()) + share.noise(name)


def _of_noise(model: nn.Module, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the gradient of a batch of noise, as training would have it."""
    generator = torch.Generator().manual_seed(ONE_STEP_TEST_SEED)
    x = torch.stack([random_tensor(shape, i, generator) for i in range(ONE_STEP_TEST_SAMPLES)])
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with torch.random.fork_rng([]), torch.enable_grad():
        z = forward_batch(model, x)
        loss = F.cross_entropy(z, torch.arange(ONE_STEP_TEST_SAMPLES) % z.shape[-1])
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g
            for (n, p), g in zip(named.items(), found, strict=True)}  # fmt: skip
