"""Write what a client sends for a whole batch as one vector of unknowns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from softleak.core.share import GradientShare
from softleak.matching.problems import DifferentiableModel, count_activations

LABEL_SUMS = 1e-2  # how far from one the entries of a distribution may add up


class RowFunction(Protocol):
    """What a client sends as a function of unknowns (n,): all that descent and products ask for."""

    @property
    def names(self) -> tuple[str, ...]: ...  # the parameters whose gradients are the first groups
    @property
    def like(self) -> Tensor: ...  # a tensor of the dtype and on the device of the arithmetic
    @property
    def unknowns(self) -> int: ...
    @property
    def sizes(self) -> dict[str, int]: ...  # the rows of each group by name
    @property
    def activations(self) -> int: ...  # entries of layers' outputs, which products hold in memory

    def groups(self, z: Tensor) -> list[Tensor]: ...  # the groups of rows
    def rows(self, z: Tensor) -> Tensor: ...  # every row (R,)


@dataclass(frozen=True, eq=False)
class BatchFunction:
    """Map the unknowns ``z`` (n,) of a batch to everything that can be compared (R,).

    The unknowns are the entries of B inputs and then of B soft labels. The rows are the gradients
    by name, then the features (B · I), then the labels themselves (B · C) and their B sums. The
    label is an unknown like the pixels: what is known of it are rows with their own precision.
    """

    model: DifferentiableModel  # the private copy of the network, in the dtype of the arithmetic
    names: tuple[str, ...]  # the parameters whose gradients are rows
    shape: tuple[int, ...]  # the shape (B, …) of the batch

    @property
    def like(self) -> Tensor:
        return self.model.like

    @property
    def activations(self) -> int:
        batch, *shape = self.shape
        return batch * count_activations(self.model, self.like.new_zeros(1, *shape))

    @property
    def pixels(self) -> int:
        """Return how many of the unknowns are entries of inputs."""
        return math.prod(self.shape)

    @property
    def unknowns(self) -> int:
        return self.pixels + self.shape[0] * self.model.head.classes

    @property
    def sizes(self) -> dict[str, int]:
        """Return the rows of each group: parameters, then ``feature``, ``label`` and ``sum``."""
        head = self.model.head
        own = {name: self.model.parameters[name].numel() for name in self.names}
        batch = self.shape[0]
        rest = {"feature": batch * head.W.shape[1], "label": batch * head.classes, "sum": batch}
        return own | {f"({name})": size for name, size in rest.items()}

    def pack(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the unknowns of inputs (B, …) and labels (B, C)."""
        return torch.cat([x.reshape(-1), y.reshape(-1)])

    def inputs(self, z: Tensor) -> Tensor:
        return z[: self.pixels].view(self.shape)

    def labels(self, z: Tensor) -> Tensor:
        return z[self.pixels :].view(self.shape[0], -1)

    def rows(self, z: Tensor) -> Tensor:
        """Return every row (R,) at the unknowns ``z``."""
        return torch.cat([part.reshape(-1) for part in self.groups(z)])

    def groups(self, z: Tensor) -> list[Tensor]:
        """Return the groups of rows at the unknowns ``z``, in the order of ``sizes``."""
        y = self.labels(z)
        found, feature = self.model.gradient_and_feature(self.inputs(z), y)
        return [*(found[name] for name in self.names), feature, y, y.sum(1)]


Function = TypeVar("Function", bound=RowFunction)


@dataclass(frozen=True, eq=False)
class ShareEquations(Generic[Function]):
    """The equations ``rows(z) = target``, every row with its standard error."""

    function: Function  # what the rows are functions of, in float64
    target: Tensor  # what the rows should be, (R,)
    deviation: Tensor  # the standard error (R,) of each row; infinite for a row that says nothing
    sent: Mapping[str, torch.dtype]  # the dtype in which each gradient was sent, by name
    unseen: frozenset[str]  # the gradients with noise, or a rounding that no simulation shows

    @classmethod
    def of(
        cls, function: Function, share: GradientShare, told: Sequence[tuple[Tensor, float]],
        computed_in: torch.dtype, floor: float = 1e-3,
    ) -> ShareEquations[Function]:  # fmt: skip
        """Read a share as equations, and what is ``told`` of the further groups of rows.

        The standard error of a gradient's entries is its rounding relative to their root mean
        square, because the errors of sums are relative to the sum of sizes, with the noise that the
        share is said to carry. A gradient of zeros counts as one of ``floor`` of the usual size.
        """
        kept = [share[name].double().reshape(-1) for name in function.names]
        usual = math.sqrt(float(torch.cat(kept).square().mean()))
        targets, deviations = [], []
        for name, g in zip(function.names, kept, strict=True):
            size = max(math.sqrt(float(g.square().mean())), floor * usual)
            error = math.hypot(share.noise(name), share.resolution(name, computed_in) * size)
            targets.append(g)
            deviations.append(torch.full_like(g, error))
        for target, error in told:
            targets.append(target.reshape(-1))
            deviations.append(torch.full_like(targets[-1], error))
        sent = {name: share[name].dtype for name in function.names}
        plain = {name: max(_ulp(dtype), _ulp(computed_in)) for name, dtype in sent.items()}
        unseen = frozenset(
            name for name in sent
            if share.noise(name) > 0 or share.resolution(name, computed_in) > plain[name]
        )  # fmt: skip
        return cls(function, torch.cat(targets), torch.cat(deviations), sent, unseen)

    @cached_property
    def weight(self) -> Tensor:
        """Return the weight (R,) of each row: the inverse of its standard error."""
        return 1 / self.deviation

    def residual(self, z: Tensor) -> Tensor:
        """Return every row's misfit (R,) at unknowns (n,), in units of its standard error."""
        with torch.no_grad():
            return (self.function.rows(z) - self.target) * self.weight

    def parted(self, rows: Tensor) -> dict[str, Tensor]:
        """Return rows (R,) as the groups that they consist of."""
        sizes = self.function.sizes
        return dict(zip(sizes, rows.split_with_sizes(list(sizes.values())), strict=True))

    def by_group(self, r: Tensor) -> dict[str, float]:
        """Return the root mean square of residuals (R,) for each group of rows that count."""
        counted = [n for n, error in self.parted(self.deviation).items() if error.isfinite().all()]
        parts = self.parted(r)
        return {name: float(parts[name].square().mean().sqrt()) for name in counted}


def _ulp(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


BatchEquations = ShareEquations[BatchFunction]


@dataclass(frozen=True, eq=False)
class BatchKnowledge:
    """What is known of the samples of a batch beside the share."""

    labels: Tensor  # the soft labels (B, C), or where to begin if nothing is known of them
    label_error: float = 0.0  # of each entry; infinite if the labels are to be found as well
    features: Tensor | None = None  # the features (B, I) that enter the head, if recovered
    feature_error: float = 0.0  # their error, relative to their size

    def equations(
        self, function: BatchFunction, share: GradientShare, computed_in: torch.dtype
    ) -> BatchEquations:
        """Return what a share says of the batch, and what is known of features and labels."""
        batch, least = function.shape[0], torch.finfo(computed_in).eps
        feature = torch.zeros(batch, function.model.head.W.shape[1], dtype=torch.double)
        feature_error = math.inf
        if self.features is not None and self.feature_error < 1:
            feature = self.features.double()
            size = math.sqrt(float(feature.square().mean()))
            feature_error = max(self.feature_error, least) * size or math.inf
        labels = self.labels.double()
        sums = labels.sum(1)  # which are one of distributions, and unknown of other labels
        whole = bool(((sums - 1).abs() <= LABEL_SUMS).all())
        total = (torch.ones_like(sums) if whole else sums, least if whole else math.inf)
        told = (feature, feature_error), (labels, max(self.label_error, least)), total
        return ShareEquations.of(function, share, told, computed_in)
