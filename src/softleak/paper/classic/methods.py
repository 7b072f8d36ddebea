"""IDLG (Zhao et al., 2020): the class of a one-hot label from the signs of the
rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from softleak.core.errors import LabelError, MissingGradient, ModelError, ShareError
from softleak.core.factors import head_gradients
from softleak.core.head import Head
from softleak.core.share import GradientShare
from softleak.core.subject import Subject


def head_gradient(
    model: nn.Module, share: GradientShare, head: str | Head | None
) -> tuple[Head, Tensor]:
    """Return the model's head and the gradient of its weight (C, I), in the dtype it came in.

    Raises:
        HeadNotFound: if no linear layer does what the attacks assume.
        MissingGradient: if the share lacks the gradient of the head.
        NonFinite: if an entry of the share is not a finite number.
    """
    share.check_finite()
    found = Subject.of(model, share.input_shape, head=head).head
    return found, head_gradients(found, [share])[0]


@dataclass(frozen=True, eq=False)
class RowRatios:
    """What Eq. 7 needs of a share, in the share's dtype.

    The searched scalar is ``s = coefficient × λ_r``, so that the feature is ``s g = λ_r g_r``.
    Algorithms 1 and 2 print ``coe × g_m``. The first interval would then begin at ``λ_r = 2.8``,
    beyond most solutions (``|λ_r| ≥ 1``). The published code divides, and so does this.

    Attributes:
        index: r, the row of the largest absolute sum.
        g: (I,) ``g_r / coefficient``.
        ratios: (C,) the ratio of every row to ``g``.
        W: (C, I) the head's weight.
        b: (C,) the head's bias.
        coefficient: what the row is divided by.
    """

    index: int
    g: Tensor
    ratios: Tensor
    W: Tensor
    b: Tensor
    coefficient: float

    @classmethod
    def of(
        cls,
        model: nn.Module,
        share: GradientShare,
        *,
        coefficient: float = 1.0,
        head: str | Head | None = None,
    ) -> RowRatios | None:
        """Return the row of the largest absolute sum, or None if that row is zero.

        Args:
            model: the classifier the gradient was computed with.
            share: what the client sent.
            coefficient: what the row is divided by.
            head: the name of the last linear layer, or a ``Head`` that the caller vouches for.
        """
        known, G = head_gradient(model, share, head)
        index = int(G.sum(1).abs().argmax())
        if not G[index].any():
            return None
        W = model.get_parameter(known.weight_name).detach().to(G)
        g = G[index] / coefficient
        # Every entry gives the same ratios; the largest one gives them with the least rounding.
        entry = g.abs().argmax()
        return cls(index, g, G[:, entry] / g[entry], W, known.b.to(G), coefficient)

    def feature(self, scalar: float) -> Tensor:
        """Return the feature ``s g`` (I,) in float64."""
        return scalar * self.g.double()


class ClassicOutcome(Enum):
    """How a method ended. ``CONVERGED`` means the method's own criterion, which is no proof."""

    CONVERGED = "the method's own criterion is met"
    OUT_OF_BOUND = "the search left its bound before the loss was low enough"
    EXHAUSTED = "the search ended before the loss was low enough"
    ZERO_GRADIENT = "the head's gradient is zero: the label equals the model's own prediction"
    UNDECIDED = "the signs of the rows single out no class"


@dataclass(frozen=True, eq=False)
class ClassicResult:
    """What a classic method found.

    Attributes:
        outcome: how the method ended.
        row: r, the row that stands for the feature.
        scalar: ``λ_r = 1 / (p_r − y_r)``. For a search that did not converge, the best it saw.
        label: (C,) the label in float64; None unless the method converged.
        feature: (I,) the feature in float64; None unless the method converged.
        loss: the loss at the scalar.
        evaluations: the number of evaluations of the loss.
    """

    outcome: ClassicOutcome
    row: int | None = None
    scalar: float | None = None
    label: Tensor | None = None
    feature: Tensor | None = None
    loss: float | None = None
    evaluations: int = 0

    @property
    def converged(self) -> bool:
        """Whether there is a label: the loss is below the threshold, or the rule applied."""
        return self.outcome is ClassicOutcome.CONVERGED


SCALE = 1000.0  # the factor of App. B.1


class Loss(Protocol):
    """A loss of pseudo labels that is zero on the labels it is made for."""

    def __call__(self, y: Tensor) -> Tensor:
        """Return the losses (…) of pseudo labels ``y`` (…, C)."""
        ...


@dataclass(frozen=True)
class Variance:
    """The loss of Eq. 5: the biased variance of all but the top ``k`` entries.

    Attributes:
        k: the number of excluded classes: 1 for smoothing, 2 for mixup.
        scale: the factor of App. B.1.
    """

    k: int = 1
    scale: float = SCALE

    def __call__(self, y: Tensor) -> Tensor:
        """Return the losses (…) of pseudo labels ``y`` (…, C)."""
        return self.scale * _rest(y, self.k, fewest=2).var(-1, unbiased=False)


@dataclass(frozen=True)
class MeanSquare:
    """The first loss of App. C: the mean square of all but the top ``k`` entries.

    It is zero on one-hot and on mixed labels.
    """

    k: int = 1
    scale: float = SCALE

    def __call__(self, y: Tensor) -> Tensor:
        """Return the losses (…) of pseudo labels ``y`` (…, C)."""
        return self.scale * _rest(y, self.k, fewest=1).square().mean(-1)


@dataclass(frozen=True)
class NegativeMass:
    """The second loss of App. C: ``Σ|ŷ_i| − 1``.

    As the entries sum to one, this is twice the mass below zero. It is linear in ŷ, not quadratic:
    float32 rounding alone leaves some 1e-4 of it, so a search needs a higher threshold than with
    Eq. 5. It is zero on a whole interval of scalars if the label has no zero.
    """

    scale: float = SCALE

    def __call__(self, y: Tensor) -> Tensor:
        """Return the losses (…) of pseudo labels ``y`` (…, C)."""
        return self.scale * (y.abs().sum(-1) - 1)


def _rest(y: Tensor, k: int, *, fewest: int) -> Tensor:
    """Return the entries (…, C − k) outside the exclusion set."""
    classes = y.shape[-1]
    if k < 1 or classes - k < fewest:
        raise LabelError(
            f"expected from 1 to {classes - fewest} excluded classes of {classes}, got k={k}"
        )
    return y.topk(classes - k, dim=-1, largest=False, sorted=False).values


class ScalarObjective(Protocol):
    """The function that a search minimises. It is differentiable."""

    def label(self, scalar: Tensor) -> Tensor:
        """Return the pseudo label (C,) of Eq. 7 at one scalar ()."""
        ...

    def __call__(self, scalars: Tensor) -> Tensor:
        """Return the losses (S,) at scalars (S,)."""
        ...


Evaluation = Callable[[RowRatios, Loss], ScalarObjective]


@dataclass(frozen=True, eq=False)
class FullHead:
    """The published evaluation: the whole head for one scalar at a time, in the share's
    dtype.

    The published code's loops in Python over entries and classes are left out, since they only cost
    time. The benchmarks have them.
    """

    row: RowRatios
    loss: Loss

    def label(self, scalar: Tensor) -> Tensor:
        """Return ``softmax(W (s g) + b) − ratios / s`` (C,)."""
        s = scalar.to(self.row.g)
        p = linear(s * self.row.g, self.row.W, self.row.b).softmax(-1)
        return p - self.row.ratios / s

    def __call__(self, scalars: Tensor) -> Tensor:
        """Return the losses (S,), computed one after the other."""
        return torch.stack([self.loss(self.label(scalar)) for scalar in scalars])


@dataclass(frozen=True, eq=False)
class Vectorised:
    """The fast evaluation: ``a = W g`` once, then all scalars together, in float64."""

    row: RowRatios
    loss: Loss
    a: Tensor = field(init=False)
    b: Tensor = field(init=False)
    ratios: Tensor = field(init=False)

    def __post_init__(self) -> None:
        a = (self.row.W @ self.row.g).double()
        object.__setattr__(self, "a", a)
        object.__setattr__(self, "b", self.row.b.double())
        object.__setattr__(self, "ratios", self.row.ratios.double())

    def label(self, scalar: Tensor) -> Tensor:
        """Return ``softmax(s a + b) − ratios / s`` (C,)."""
        return self._labels(scalar[None])[0]

    def __call__(self, scalars: Tensor) -> Tensor:
        """Return the losses (S,), computed all at once."""
        return self.loss(self._labels(scalars))

    def _labels(self, scalars: Tensor) -> Tensor:
        """Return the pseudo labels (S, C) at scalars (S,)."""
        s = scalars.to(self.a)[:, None]
        return (s * self.a + self.b).softmax(-1) - self.ratios / s


@dataclass(frozen=True)
class Best:
    """The lowest point of a search.

    Attributes:
        scalar: the searched scalar ``s = coefficient × λ_r``.
        loss: the loss there.
        evaluations: the number of evaluations of the loss that the search took.
    """

    scalar: float
    loss: float
    evaluations: int

    def lower(self, other: Best) -> Best:
        """Return the lower of two points of one search, with the evaluations of both."""
        first = self if self.loss <= other.loss else other
        return Best(first.scalar, first.loss, self.evaluations + other.evaluations)


def answer(
    row: RowRatios, objective: ScalarObjective, outcome: ClassicOutcome, best: Best
) -> ClassicResult:
    """Return the result of a search; it has a label and a feature only if the search converged."""
    scalar = best.scalar / row.coefficient
    if outcome is not ClassicOutcome.CONVERGED:
        return ClassicResult(
            outcome, row.index, scalar, loss=best.loss, evaluations=best.evaluations
        )
    with torch.no_grad():
        label = objective.label(torch.tensor(best.scalar, dtype=torch.double)).double()
    feature = row.feature(best.scalar)
    return ClassicResult(outcome, row.index, scalar, label, feature, best.loss, best.evaluations)


def bias_ratio(
    model: nn.Module, share: GradientShare, *, head: str | Head | None = None
) -> ClassicResult:
    """Read the label off the gradient of the head's bias.

    The feature is ``x = G_r / (G_b)_r`` with r the largest entry of ``|G_b|``, and the label is
    ``y = softmax(W x + b) − G_b``.

    Args:
        model: the classifier the gradient was computed with.
        share: what the client sent.
        head: the name of the last linear layer, or a ``Head`` that the caller vouches for.

    Returns:
        The label and the feature; ZERO_GRADIENT if the bias's gradient is zero.

    Raises:
        ModelError: if the head has no bias.
        MissingGradient: if the share lacks a gradient of the head.
        ShareError: if the gradient of the bias does not have the model's shape.
    """
    known, sent = head_gradient(model, share, head)
    _check_bias(model, known, share)
    G = sent.double()
    delta = share[known.bias_name].to(G)
    index = int(delta.abs().argmax())
    if not delta[index]:
        return ClassicResult(ClassicOutcome.ZERO_GRADIENT)
    feature = G[index] / delta[index]
    p = torch.softmax(known.logits(feature[None])[0] + known.b, dim=-1)
    return ClassicResult(
        ClassicOutcome.CONVERGED, index, 1 / float(delta[index]), p - delta, feature
    )


def _check_bias(model: nn.Module, head: Head, share: GradientShare) -> None:
    """Raise unless the head has a bias and the share its gradient, in the same shape."""
    if head.bias_name not in dict(model.named_parameters()):
        raise ModelError(
            f"expected a head with a bias, but {head.name or 'the model'!r} has none; "
            "use recover_label, which finds other evidence"
        )
    if head.bias_name not in share:
        raise MissingGradient(
            f"the share lacks {head.bias_name!r}, the gradient of the head's bias"
        )
    if share[head.bias_name].shape != head.b.shape:
        raise ShareError(
            f"the gradient {head.bias_name!r} should be {tuple(head.b.shape)} as the model's bias, "
            f"got {tuple(share[head.bias_name].shape)}; is this the right model?"
        )


def idlg(
    model: nn.Module, share: GradientShare, *, head: str | Head | None = None
) -> ClassicResult:
    """Return the class whose row points against all other rows, as a one-hot label.

    Rows are ``(p_i − y_i) x``. With a one-hot label only the row of its class has a negative
    factor. No class is singled out if there are two rows in all (two classes, or a saturated
    softmax: App. B.3), or if several rows point against several others. The label is assumed to be
    one-hot: for a soft label with a single negative ``p_i − y_i`` the answer is wrong.

    Args:
        model: the classifier the gradient was computed with.
        share: what the client sent.
        head: the name of the last linear layer, or a ``Head`` that the caller vouches for.

    Returns:
        The one-hot label, without a feature; UNDECIDED if no class is singled out.
    """
    known, sent = head_gradient(model, share, head)
    G = sent.double()
    largest = G[G.square().sum(1).argmax()]
    side = torch.sign(G @ largest)
    if not side.any():
        return ClassicResult(ClassicOutcome.ZERO_GRADIENT)
    alone, others = sorted(((side > 0).nonzero(), (side < 0).nonzero()), key=len)
    if len(alone) != 1 or len(others) < 2:
        return ClassicResult(ClassicOutcome.UNDECIDED)
    index = int(alone)
    label = nn.functional.one_hot(torch.tensor(index), known.classes).to(G)
    return ClassicResult(ClassicOutcome.CONVERGED, index, label=label)
