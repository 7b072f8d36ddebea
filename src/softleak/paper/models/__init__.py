"""Image classifiers to audit, their initialisation and weight files."""

from softleak.io.weights import load_weights
from softleak.paper.models.networks import alexnet, fcn4, kaiming_, lenet, mlp, uniform_, vgg
from softleak.paper.models.registry import MODELS, ModelSpec, trained_lenet
from softleak.paper.models.resnet import (
    resnet18,
    resnet18_cifar,
    resnet20,
    resnet32,
    resnet50,
    resnet50_cifar,
    resnet56,
)
from softleak.paper.models.vit import vit

__all__ = [
    "MODELS",
    "ModelSpec",
    "alexnet",
    "fcn4",
    "kaiming_",
    "lenet",
    "load_weights",
    "mlp",
    "resnet18",
    "resnet18_cifar",
    "resnet20",
    "resnet32",
    "resnet50",
    "resnet50_cifar",
    "resnet56",
    "trained_lenet",
    "uniform_",
    "vgg",
    "vit",
]
