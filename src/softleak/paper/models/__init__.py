"""Image classifiers to audit, their initialisation and weight files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import resources
from types import MappingProxyType

import safetensors.torch
from torch import nn

from softleak.io.weights import copy_state, load_weights
from softleak.paper.models.networks import (
    LeNet,
    alexnet,
    fcn4,
    kaiming_,
    lenet,
    mlp,
    resnet18,
    resnet18_cifar,
    resnet20,
    resnet32,
    resnet50,
    resnet50_cifar,
    resnet56,
    uniform_,
    vgg,
    vit,
)

__all__ = [
    "MODELS", "ModelSpec", "alexnet", "fcn4", "kaiming_", "lenet", "load_weights", "mlp",
    "resnet18", "resnet18_cifar", "resnet20", "resnet32", "resnet50", "resnet50_cifar",
    "resnet56", "trained_lenet", "uniform_", "vgg", "vit",
]  # fmt: skip


@dataclass(frozen=True)
class ModelSpec:
    """A model factory that is called through this, and the image shape (C, H, W) it is for."""

    factory: Callable[..., nn.Module]
    input_shape: tuple[int, int, int] = (3, 32, 32)

    def __call__(self, *args: object, **options: object) -> nn.Module:
        return self.factory(*args, **options)


MODELS: Mapping[str, ModelSpec] = MappingProxyType(
    {
        "lenet": ModelSpec(lenet),
        "alexnet": ModelSpec(alexnet, (3, 224, 224)),
        "resnet18": ModelSpec(resnet18),
        "resnet50": ModelSpec(resnet50, (3, 224, 224)),
        "resnet18_cifar": ModelSpec(resnet18_cifar),
        "resnet50_cifar": ModelSpec(resnet50_cifar),
        "resnet20": ModelSpec(resnet20),
        "resnet32": ModelSpec(resnet32),
        "resnet56": ModelSpec(resnet56),
        "fcn4": ModelSpec(fcn4, (3, 64, 64)),
        "mlp": ModelSpec(partial(mlp, 3 * 32 * 32)),
        "vgg": ModelSpec(vgg),
        "vit": ModelSpec(vit),
    }
)


_LENET = "lenet_cifar10.safetensors"


def trained_lenet() -> LeNet:
    """Return the sigmoid LeNet trained on CIFAR-10 (inputs by CIFAR10_NORM), in eval mode."""
    model = lenet()
    data = resources.files("softleak.paper.models").joinpath("weights", _LENET).read_bytes()
    copy_state(model, safetensors.torch.load(data), _LENET)
    return model.eval()
