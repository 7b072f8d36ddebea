"""How the trained networks of Tables 2 to 4 are trained, by the name of their checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from softleak.experiments.training import Recipe

RECIPES: Mapping[str, Recipe] = {
    # The network that comes with the package was trained like this.
    "lenet": Recipe("lenet", epochs=100, lr=5e-3, weight_decay=0.05, gain=2.5, batch=64),
    "resnet18": Recipe("resnet18", smoothing=0.1, weight_decay=0.05),
    "resnet18_cifar": Recipe("resnet18_cifar", smoothing=0.1, weight_decay=0.05),
    "alexnet_flowers": Recipe("alexnet", epochs=8, lr=5e-4, batch=64, smoothing=0.1, size=224),
    # It is fully convolutional, so it is trained on smaller images to save time.
    "resnet18_flowers": Recipe("resnet18_cifar", epochs=8, batch=32, smoothing=0.1),
}
