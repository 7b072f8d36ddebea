"""The memory that one problem takes, and so how many problems run in one batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from softleak.matching.differentiable_model import DifferentiableModel
from softleak.matching.layer_outputs import count_activations
from softleak.matching.minimum import Optimiser


@dataclass(frozen=True)
class MemoryModel:
    """An estimate of what double backpropagation holds of one problem.

    The two factors were measured on LeNet, ResNet18, VGG and ViT.

    Attributes:
        activations: how many copies of all layers' outputs are held.
        parameters: how many copies of the model's parameters are held.
        most_problems: the largest batch; beyond it a batch is not faster.
    """

    activations: int = 12
    parameters: int = 6
    most_problems: int = 64

    def entries(
        self, model: DifferentiableModel, input_shape: tuple[int, ...], optimiser: Optimiser
    ) -> int:
        """Return how many numbers one problem holds in memory.

        ``activations · A + parameters · |θ| + vectors · n``, where ``A`` counts the entries of all
        layers' outputs, and ``n`` the unknowns of a problem.
        """
        weights = sum(p.numel() for p in model.parameters.values())
        unknowns = math.prod(input_shape) + model.head.classes
        return (
            self.activations * count_activations(model, model.like.new_zeros(1, *input_shape))
            + self.parameters * weights
            + optimiser.vectors * unknowns
        )

    def batch_size(
        self, model: DifferentiableModel, input_shape: tuple[int, ...], optimiser: Optimiser,
        memory: int,
    ) -> int:  # fmt: skip
        """Return how many problems fit in ``memory`` bytes, at least one.

        Raises:
            ModelError: if the model does not take an input of this shape.
        """
        size = self.entries(model, input_shape, optimiser) * model.like.element_size()
        return max(1, min(self.most_problems, memory // size))
