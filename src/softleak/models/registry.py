"""This module lists every model by name, with the input it takes by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from torch import nn

from softleak.models.alexnet import alexnet
from softleak.models.fcn import fcn4
from softleak.models.lenet import lenet
from softleak.models.mlp import mlp
from softleak.models.resnet import resnet18, resnet18_cifar, resnet50, resnet50_cifar
from softleak.models.resnet_cifar import resnet20, resnet32, resnet56
from softleak.models.vgg import vgg
from softleak.models.vit import vit


@dataclass(frozen=True)
class ModelSpec:
    """This is a model factory and the image shape (C, H, W) its defaults are made for.

    Calling a spec calls the factory: `MODELS["lenet"](classes=100)`.
    """

    factory: Callable[..., nn.Module]
    input_shape: tuple[int, int, int] = (3, 32, 32)

    def __call__(self, *args: object, **options: object) -> nn.Module:
        """Build the model."""
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
