"""This module writes what a client sends for a whole batch as one vector of unknowns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.matching.differentiable_model import DifferentiableModel
from softleak.matching.layer_outputs import count_activations


@dataclass(frozen=True, eq=False)
class BatchFunction:
    """This maps the unknowns ``z`` (n,) of a batch to everything that can be compared (R,).

    The unknowns are the entries of B inputs and then of B soft labels. The rows are the gradients
    by name, then the features (B · I), then the labels themselves (B · C) and their B sums. The
    label is an unknown like the pixels: what is known of it are rows with their own precision.

    Attributes:
        model: the private copy of the network, in the dtype of the arithmetic.
        names: the parameters whose gradients are rows.
        shape: the shape (B, …) of the batch.
    """

    model: DifferentiableModel
    names: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def pixels(self) -> int:
        """Return how many of the unknowns are entries of inputs."""
        return math.prod(self.shape)

    @property
    def unknowns(self) -> int:
        """Return the number n of unknowns."""
        return self.pixels + self.shape[0] * self.model.head.classes

    @property
    def sizes(self) -> dict[str, int]:
        """Return how many rows each group has, in their order: the parameters by name, then
        ``feature``, ``label`` and ``sum``.
        """
        head = self.model.head
        own = {name: self.model.parameters[name].numel() for name in self.names}
        batch = self.shape[0]
        rest = {"feature": batch * head.W.shape[1], "label": batch * head.classes, "sum": batch}
        return own | {f"({name})": size for name, size in rest.items()}

    @property
    def activations(self) -> int:
        """Return how many entries the outputs of all layers have, for the whole batch."""
        one = self.model.like.new_zeros(1, *self.shape[1:])
        return self.shape[0] * count_activations(self.model, one)

    def pack(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the unknowns of inputs (B, …) and labels (B, C)."""
        return torch.cat([x.reshape(-1), y.reshape(-1)])

    def inputs(self, z: Tensor) -> Tensor:
        """Return the inputs (B, …) that unknowns hold."""
        return z[: self.pixels].view(self.shape)

    def labels(self, z: Tensor) -> Tensor:
        """Return the labels (B, C) that unknowns hold."""
        return z[self.pixels :].view(self.shape[0], -1)

    def rows(self, z: Tensor) -> Tensor:
        """Return every row (R,) at the unknowns ``z``."""
        return torch.cat([part.reshape(-1) for part in self.groups(z)])

    def groups(self, z: Tensor) -> list[Tensor]:
        """Return the groups of rows at the unknowns ``z``, in the order of ``sizes``."""
        x, y = self.inputs(z), self.labels(z)
        found, feature = self.simulate(x, y)
        return [*(found[name] for name in self.names), feature, y, y.sum(1)]

    def simulate(self, x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the mean gradient of a batch by name, and its features (B, I)."""
        return self.model.gradient_and_feature(x, y)
