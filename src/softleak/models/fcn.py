"""This module builds FCN-4, the paper's fully connected network for 64x64 images."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from softleak.models.checks import positive
from softleak.models.mlp import MLP, mlp


def fcn4(
    classes: int = 17,
    image: int = 64,
    bias: bool = False,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> MLP:
    """Build the paper's FCN-4 for square RGB images.

    Args:
        classes: the number of classes.
        image: the pixels per side.
        bias: whether hidden layers have a bias; the head never has one.
        activation: makes the activation after each hidden layer.
    """
    positive("image", image)
    return mlp(3 * image * image, (4096, 1024, 256), classes, activation, bias)
