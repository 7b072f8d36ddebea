"""Many independent reconstructions as one function of a matrix, with a row and a loss for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from softleak.core.errors import OptionError
from softleak.matching.gradients import DifferentiableModel, OuterProducts, compiled, parts


@runtime_checkable
class Objective(Protocol):
    """A distance between what one input would send and what was sent."""

    @property
    def alpha(self) -> float:
        """Return the weight of the gradient of the head's weight."""

    @property
    def beta(self) -> float:
        """The weight of the feature; if it is zero, no feature is needed."""

    def gradients(self, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
        """Return ``D`` over all gradients, which are already scaled by the root of their weight."""

    def features(self, ours: Tensor, theirs: Tensor) -> Tensor:
        """Return ``D`` of two features (I,), or the mean over those of a batch (B, I)."""


@dataclass(frozen=True)
class _Weights:
    """The two weights of Eq. 8, which every objective here has."""

    alpha: float = 1.0  # of the gradient of the head's weight; zero leaves it out
    beta: float = 0.0  # of the feature; zero leaves it out

    def __post_init__(self) -> None:
        if not (0 <= self.alpha < float("inf") and 0 <= self.beta < float("inf")):
            raise OptionError(
                f"expected weights that are finite and not negative, got alpha {self.alpha} and "
                f"beta {self.beta}"
            )


@dataclass(frozen=True)
class L2(_Weights):
    """The sum of squared differences (DLG)."""

    def gradients(self, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
        apart = [(a - b).square().sum() for a, b in zip(ours, theirs, strict=True)]
        return torch.stack(apart).sum()

    def features(self, ours: Tensor, theirs: Tensor) -> Tensor:
        return (ours - theirs).square().sum(-1).mean()


@dataclass(frozen=True)
class Cosine(_Weights):
    """One minus the cosine of the angle between all gradients, taken as one vector."""

    floor: float = 1e-30  # the least squared norm, so that a gradient of zero has a finite loss

    def gradients(self, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
        product = torch.stack([(a * b).sum() for a, b in zip(ours, theirs, strict=True)]).sum()
        sizes = [torch.stack([g.square().sum() for g in each]).sum() for each in (ours, theirs)]
        both = sizes[0].clamp_min(self.floor) * sizes[1].clamp_min(self.floor)
        return 1 - product * both.rsqrt()

    def features(self, ours: Tensor, theirs: Tensor) -> Tensor:
        product = (ours * theirs).sum(-1)
        sizes = [g.square().sum(-1).clamp_min(self.floor) for g in (ours, theirs)]
        return (1 - product * (sizes[0] * sizes[1]).rsqrt()).mean()


class Prior(Protocol):
    """A penalty of one input, which is smaller where the input is likelier."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the penalty, a scalar, of one input such as (C, H, W)."""


@dataclass(frozen=True)
class TotalVariation:
    """The mean absolute difference of neighbours along each axis of an image or a signal.

    ``weight · Σ_axes mean |x_{i+1} − x_i|`` over the last two axes that are longer than one.
    """

    weight: float = 1e-2  # the paper has 1e-2 on untrained networks, 1e-3 on trained ones

    def __call__(self, x: Tensor) -> Tensor:
        axes = [axis for axis in (-1, -2) if x.ndim >= -axis and x.shape[axis] > 1]
        return self.weight * sum((x.diff(dim=a).abs().mean() for a in axes), x.new_zeros(()))


@dataclass(frozen=True)
class Box:
    """The mean square of the distance by which entries lie outside an interval."""

    low: Tensor | float  # the lower end: a number, or a tensor that broadcasts
    high: Tensor | float  # the upper end, likewise
    weight: float = 1.0  # the factor of the penalty

    def __call__(self, x: Tensor) -> Tensor:
        below, above = (self.low - x).clamp_min(0), (x - self.high).clamp_min(0)
        return self.weight * (below.square() + above.square()).mean()


Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Targets:
    """What P clients sent, and the labels that are assumed."""

    # One tensor (P, …) for each of the problems' names; outer products are σ, u, v (P, 1 + C + I).
    gradients: tuple[Tensor, ...]
    # (P, I), or (P, 1) of zeros if the objective has no use for it; (P, B, I) for batches, with NaN
    # for samples whose feature is not known.
    feature: Tensor
    label: Tensor  # the soft labels (P, C), or (P, B, C); rows of free labels have no effect
    free: Tensor  # whether each label is optimised with its input, (P,) or (P, B)

    def select(self, rows: Tensor) -> Targets:
        """Return the targets of some problems, given by index or mask."""
        gradients = tuple(g[rows] for g in self.gradients)
        return Targets(gradients, self.feature[rows], self.label[rows], self.free[rows])


@dataclass(frozen=True, eq=False)
class MatchingProblems:
    """P independent problems over rows of unknowns.

    A row holds the entries of an input and then the logits of its label, n numbers in all. The
    inputs and labels of a batch are one row.
    """

    model: DifferentiableModel  # the function from input and label to gradient
    names: tuple[str, ...]  # the parameters whose gradients are matched
    objective: Objective  # the distance of gradients and features (Eq. 8)
    priors: Sequence[Prior]  # penalties of the input, added to the distance
    input_shape: tuple[int, ...]  # the shape of one input, or that of a batch (B, …)
    targets: Targets  # what was sent
    compiled: bool = False  # whether evaluations are compiled: faster, and rounded differently
    outer: OuterProducts | None = None  # the layers whose gradients are compared as outer products

    @property
    def _factored(self) -> frozenset[str]:
        """The parameters whose gradients are compared as outer products."""
        return frozenset() if self.outer is None else self.outer.weights

    def select(self, rows: Tensor) -> MatchingProblems:
        """Return some of the problems, given by index or mask."""
        return replace(self, targets=self.targets.select(rows))

    def pack(self, inputs: Tensor, logits: Tensor) -> Tensor:
        """Return the unknowns (P, n) of inputs (P, …) and logits (P, C) or (P, B, C)."""
        return torch.cat([inputs.flatten(1), logits.flatten(1)], 1)

    def inputs(self, unknowns: Tensor) -> Tensor:
        """Return the inputs (P, …) that unknowns (P, n) hold."""
        flat = unknowns[:, : -self.targets.label[0].numel()]
        return flat.reshape(len(unknowns), *self.input_shape)

    def labels(self, unknowns: Tensor) -> Tensor:
        """Return the labels (P, C), or (P, B, C): those kept, or the softmax of free logits."""
        kept = self.targets.label
        logits = unknowns[:, -kept[0].numel() :].view_as(kept)
        return torch.where(self.targets.free[..., None], logits.softmax(-1), kept)

    def evaluator(self) -> Evaluate:
        """Return the function from unknowns (P, n) to losses (P,) and their gradients (P, n).

        Problems are evaluated one after the other if the model cannot be vectorised.
        """
        function = vmap(grad_and_value(self._loss), randomness="different")
        if self.compiled:
            function = compiled(function)
        t = self.targets
        vectorised = True

        def evaluate(unknowns: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal vectorised
            if vectorised:
                try:
                    slope, loss = function(unknowns, t.gradients, t.feature, t.label, t.free)
                    return loss, slope
                except OptionError:
                    raise
                except Exception:  # control flow by data, an operation without a batched form
                    vectorised = False
            return self._one_by_one(unknowns)

        return evaluate

    def misfits(self, unknowns: Tensor) -> list[float]:
        """Return ``‖g − g*‖ / ‖g*‖`` of each problem at unknowns (P, n), of gradients alone."""
        alone = replace(self, objective=L2(), priors=(), compiled=False)
        loss, _ = alone.evaluator()(unknowns)
        named = zip(self.names, self.targets.gradients, strict=True)
        sizes = [g[:, :1] if name in self._factored else g.flatten(1) for name, g in named]
        whole = torch.stack([size.square().sum(1) for size in sizes]).sum(0)
        return (loss / whole).sqrt().tolist()

    def _one_by_one(self, unknowns: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same by plain autograd, without vectorisation or fused recurrent layers."""
        plain, t = replace(self.model, plain=True), self.targets
        outer = None if self.outer is None else replace(self.outer, model=plain)
        alone = replace(self, model=plain, outer=outer)
        losses, slopes = [], []
        with torch.enable_grad():
            for i, row in enumerate(unknowns):
                x = row.detach().requires_grad_()
                sent = [g[i] for g in t.gradients]
                loss = alone._loss(x, sent, t.feature[i], t.label[i], t.free[i])
                slopes.append(torch.autograd.grad(loss, x)[0])
                losses.append(loss.detach())
        return torch.stack(losses), torch.stack(slopes)

    def _loss(
        self, unknowns: Tensor, sent: Sequence[Tensor], feature: Tensor, label: Tensor, free: Tensor
    ) -> Tensor:
        """Return Eq. 8 and the priors for one problem."""
        x = unknowns[: -label.numel()].view(self.input_shape)
        logits = unknowns[-label.numel() :].view(label.shape)
        y = torch.where(free[..., None], logits.softmax(-1), label)
        if self.objective.beta:
            found, own = self.model.gradient_and_feature(x, y)
            known = feature.isfinite()  # samples of a batch that were not found have none
            own, feature = torch.where(known, own, 0.0), torch.where(known, feature, 0.0)
            extra = self.objective.beta * self.objective.features(own, feature)
        else:
            found, extra = (self.outer or self.model).gradient(x, y), x.new_zeros(())
        loss = self.objective.gradients(*self._weighted(found, sent)) + extra
        for prior in self.priors:
            loss = loss + prior(x)
        return loss

    def _weighted(
        self, found: dict[str, Tensor], sent: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return both sides, with the head's gradient scaled by √α, or left out if α is zero."""
        alpha, head = self.objective.alpha, self.model.head.weight_name
        named = zip(self.names, sent, strict=True)
        pairs = {
            name: parts(found[name], g, len(self.model.parameters[name]))
            if name in self._factored
            else (found[name], g)
            for name, g in named
        }
        if alpha != 1 and head in pairs:
            ours, theirs = pairs.pop(head)
            if alpha:
                pairs[head] = (ours * alpha**0.5, theirs * alpha**0.5)
        return [ours for ours, _ in pairs.values()], [theirs for _, theirs in pairs.values()]
