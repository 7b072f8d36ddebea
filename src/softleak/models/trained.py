"""This module loads networks whose trained weights come with the package."""

from __future__ import annotations

from importlib import resources

import safetensors.torch

from softleak.models.checkpoint import copy_state
from softleak.models.lenet import LeNet, lenet

_LENET = "lenet_cifar10.safetensors"


def trained_lenet() -> LeNet:
    """Return the sigmoid LeNet trained on CIFAR-10 (inputs by CIFAR10_NORM), in eval mode."""
    model = lenet()
    data = resources.files("softleak.models").joinpath("weights", _LENET).read_bytes()
    copy_state(model, safetensors.torch.load(data), _LENET)
    return model.eval()
