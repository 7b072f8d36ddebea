"""What a share of many samples still says of its classes: which are there, and how often each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from softleak.core.errors import LabelError
from softleak.core.factors import head_gradients, numerical_rank
from softleak.core.forward import forward_one, random_input, recorded_inputs, seeded
from softleak.core.head import Head
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.labels.noisy.spectrum import features_of_noise

Node = Any  # a node of autograd's graph, whose class has no public name
NEVER = frozenset({"Relu", "Sigmoid", "Softmax", "Softplus", "Abs", "Exp", "Square"})
# What leaves entries as they are, picks among them, or averages them.
KEEPS = frozenset({
    "View", "UnsafeView", "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze", "Permute", "Transpose",
    "T", "Select", "Slice", "Expand", "Clone", "ToCopy", "Mean", "Sum", "Max", "Amax", "AvgPool1D",
    "AvgPool2D", "AvgPool3D", "AdaptiveAvgPool2D", "AdaptiveAvgPool3D", "MaxPool2DWithIndices",
    "MaxPool3DWithIndices", "AdaptiveMaxPool2D", "Cat", "Stack", "NativeDropout", "Contiguous",
    "Alias", "SplitWithSizes", "Split", "Index", "IndexSelect", "Gather", "Flip", "ConstantPadNd",
})  # fmt: skip
PRODUCTS = frozenset({"Mul", "Add"})  # of two factors or terms that are never negative


def never_negative(subject: Subject) -> bool:
    """Return whether no feature before the head can be negative, whatever the input.

    Runs on random inputs cannot prove it: GELU and ELU are hardly ever negative behind a pooling of
    maxima. The graph that autograd records of a run names the operations.
    """
    shape = subject.input_shape
    if shape is None:
        return False
    generator = torch.Generator().manual_seed(0)
    try:
        with seeded(0, subject.head.W), torch.enable_grad():
            model = copy.deepcopy(subject.model).requires_grad_()  # frozen layers leave no graph
            with recorded_inputs(model, subject.head.name) as entered:
                forward_one(model, random_input(shape, 0, generator))
    except Exception:  # the model's own code may raise anything
        return False
    calls = entered[subject.head.name]
    return bool(calls) and _never(calls[-1].grad_fn)


def _never(node: Node) -> bool:
    """Return whether what a node computes is never negative."""
    if node is None:
        return False
    name = type(node).__name__.removesuffix("0").removesuffix("1").removesuffix("Backward")
    if name in NEVER or (name in BOUNDED and BOUNDED[name](node)):
        return True
    before = [one for one, _ in node.next_functions if one is not None]
    if name in KEEPS:
        return bool(before) and all(map(_never, before))
    both = len(before) == len(node.next_functions) == 2
    plain = getattr(node, "_saved_alpha", 1) == 1
    return name in PRODUCTS and both and plain and all(map(_never, before))


BOUNDED: Mapping[str, Callable[[Node], bool]] = {
    "Hardtanh": lambda node: node._saved_min_val >= 0,
    "Clamp": lambda node: node._saved_min is not None and node._saved_min >= 0,
    "ClampMin": lambda node: node._saved_min >= 0,
    "Pow": lambda node: float(node._saved_exponent) % 2 == 0,
    "Hardsigmoid": lambda node: True,
}


PRESENT_ROUNDINGS = 16.0  # an entry this many roundings below zero is negative
# The most that labels are taken to be smoothed by: a class of no sample is then raised by up to a
# C-th of it.
MOST_SMOOTHED = 0.2
UNLIKELY = 2.5  # times what smoothing gives a class of no sample: a smaller p may be below that
UNSURE_LENGTH = 5.0  # times: how much longer features may be than those of noise
MISPLACED = 0.5  # of all predictions: more than a sign that is right takes from few classes
# A first step with Nesterov momentum is up to twice as long as the rate that is stated says.
LONGEST_STEP = 2.0
LOPSIDED = 4.0  # times as many classes raised as lowered: a sign that does this is a wrong one


@dataclass(frozen=True, eq=False)
class Batch:
    """What a share of several samples, or of several local steps of SGD, still says."""

    gradients: int  # behind it at least: of samples, or of the same sample in another step
    present: tuple[int, ...]  # classes, proved unless labels are smoothed by more than a fifth
    counts: Tensor | None  # (C,) how often each is estimated to occur, if samples are stated
    message: str  # what was proved, or why nothing was
    raised: tuple[int, ...] = ()  # all classes made more likely, by samples or by smoothing


@dataclass(frozen=True, eq=False)
class BatchReader:
    """A model made ready to read batches, by the features it makes of noise."""

    head: Head
    features: Tensor  # (n, I) what it makes of noise; none if the model cannot be run
    never_negative: bool = False  # whether no feature can be, by the operations it comes from

    @classmethod
    def of(cls, subject: Subject) -> BatchReader:
        """Make a model ready by running it on noise, if it is known what it takes."""
        noise = subject.once(features_of_noise)
        return cls(subject.head, noise, subject.once(never_negative))

    @cached_property
    def like_a_bias(self) -> Tensor | None:
        """Return a direction (I,) along which usual features have length one; a bias has such."""
        if not len(self.features):
            return None
        mean = self.features.mean(0)
        size = float(mean.square().sum())
        return mean / size if size > 0 else None

    @cached_property
    def likely(self) -> Tensor:
        """Return which classes (C,) get more on any noise than smoothing gives one of no sample."""
        if not len(self.features):
            return torch.zeros(self.head.classes, dtype=torch.bool)
        least = torch.softmax(self.head.logits(self.features) + self.head.b, -1).amin(0)
        return least > UNLIKELY * MOST_SMOOTHED / self.head.classes

    def read(
        self, share: GradientShare, samples: int | None = None, *, left: float | None = None
    ) -> Batch:
        """Return what is behind a share of a known scale; compression ``left`` it this error."""
        if samples is not None and samples < 1:
            raise LabelError(f"expected one sample or more, got {samples}")
        (sent,) = head_gradients(self.head, [share])
        G = sent.double()
        error = _rounding(share, self.head.weight_name, self.head) + (left or 0.0)
        if left is None and not bool((G.sum(0).abs() <= error * len(G) ** 0.5).all()):
            noisy = "the head's gradient carries noise: neither samples nor classes proved"
            return Batch(1, (), None, noisy)
        least = max(self._rank(share), 1)
        raised, lowered = self._moved(share, G, error)
        if self.is_lopsided(share, len(raised), lowered):
            return Batch(least, (), None, "nearly every class is raised: the sign may be wrong")
        present = self._present(share, G, raised)
        counts = None if samples is None or left else self.counts(share, raised, samples)
        how = "" if raised else f": {self._why_none(share)}"
        open_ = len(raised) - len(present)
        more = f", {open_} more raised, which smoothing may do" if open_ else ""
        some, named = "s" * (least != 1), "es" * (len(present) != 1)
        words = f"at least {least} gradient{some}; {len(present)} class{named} proved{more}{how}"
        return Batch(least if left is None else 1, present, counts, words, raised)

    def is_lopsided(self, share: GradientShare, raised: int, lowered: int) -> bool:
        """Return whether more classes are raised than the right sign of an update raises.

        So many samples as classes are raised leave as many gradients. Where there are as many as
        can be told apart, what is lowered tells: it had been predicted, by half of all at least.
        """
        if raised <= 2 or raised < LOPSIDED * lowered:
            return False
        G = head_gradients(self.head, [share])[0].double()
        rank = self._rank(share)
        if rank < min(len(G) - 1, G.shape[1]):
            return raised > rank
        delta = self._mean_delta(share, G)
        if delta is None or share.scale == "unknown" or not len(self.features):
            return True
        p = torch.softmax(self.head.logits(self.features) + self.head.b, -1).mean(0)
        return float((delta - p)[delta > 0].sum()) > MISPLACED

    def _rank(self, share: GradientShare) -> int:
        relative = share.resolution(self.head.weight_name, self.head.dtype)
        return numerical_rank(self.head, share, relative)

    def _tells_mean(self, share: GradientShare) -> bool:
        """Return whether the share holds the gradient of the head's bias, the mean of p − y."""
        return self.head.has_bias and self.head.bias_name in share

    def _moved(self, share: GradientShare, G: Tensor, error: float) -> tuple[tuple[int, ...], int]:
        """Return classes j with a negative sum of p_j − y_j, and how many have a positive one."""
        name = self.head.bias_name
        negative = positive = torch.zeros(len(G), dtype=torch.bool)
        if self._tells_mean(share):
            own = _rounding(share, name, self.head)
            negative, positive = share[name].double() < -own, share[name].double() > own
        if self.never_negative:
            negative = negative | (G + error < 0).any(1)
            positive = positive | (G - error > 0).any(1)
        return tuple(negative.nonzero()[:, 0].tolist()), int((positive & ~negative).sum())

    def _present(self, share: GradientShare, G: Tensor, raised: tuple[int, ...]) -> tuple[int, ...]:
        """Return the classes that are raised by more than smoothing may do without a sample.

        It raises the unlikely by however much the steps between two checkpoints add up to.
        """
        delta, floor = self._mean_delta(share, G), MOST_SMOOTHED / len(G) * longest_step(share)
        if delta is None or share.scale == "unknown":
            return ()
        if not self._tells_mean(share):
            floor *= UNSURE_LENGTH
        steps = share.scale != "known" and len(set(share.rounding.values())) > 1
        sure = self.likely | (not steps)
        return tuple(j for j in raised if float(delta[j]) < -floor and sure[j])

    def _why_none(self, share: GradientShare) -> str:
        """Return why no class was proved."""
        if self.never_negative or self._tells_mean(share):
            return "no entry of the head's gradient is below zero by more than rounding"
        bias = "the gradient of the head's bias is missing"
        return (
            f"{bias if self.head.has_bias else 'the head has no bias'} and its features "
            f"{'may be negative' if len(self.features) else 'could not be looked at'}"
        )

    def counts(self, share: GradientShare, present: tuple[int, ...], samples: int) -> Tensor | None:
        """Return n with ``Σ_c n_c (p_c − e_c) = B δ``, p_c the probabilities of class c."""
        G = head_gradients(self.head, [share])[0].double()
        delta = self._mean_delta(share, G)
        if delta is None:
            return None
        # The mean feature of each class (C, I): its own row's, if its samples dominate it.
        own = delta < 0 if bool((delta < 0).any()) else delta == delta.min()
        x = G / torch.where(own, delta, 1.0)[:, None]
        everyone = (x * torch.where(own, delta, 0.0)[:, None]).sum(0) / delta[own].sum()
        x = torch.where(own[:, None], x, everyone)
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
        if self._tells_mean(share):
            return share[self.head.bias_name].double()
        return None if self.like_a_bias is None else G @ self.like_a_bias


def longest_step(share: GradientShare) -> float:
    """Return how many times the mean gradient a share is at most, if it is that of one step."""
    return 1.0 if share.scale == "known" else LONGEST_STEP


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
