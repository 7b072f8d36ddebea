"""This package holds image classifiers to audit, their initialisation and weight files."""

from softleak.models.alexnet import alexnet
from softleak.models.checkpoint import load_weights
from softleak.models.fcn import fcn4
from softleak.models.initialise import kaiming_, uniform_
from softleak.models.lenet import lenet
from softleak.models.mlp import mlp
from softleak.models.registry import MODELS, ModelSpec
from softleak.models.resnet import resnet18, resnet18_cifar, resnet50, resnet50_cifar
from softleak.models.resnet_cifar import resnet20, resnet32, resnet56
from softleak.models.trained import trained_lenet
from softleak.models.vgg import vgg
from softleak.models.vit import vit

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
