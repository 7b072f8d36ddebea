from __future__ import annotations

import torch

from softleak.paper.data import CIFAR10_NORM, embedded
from softleak.paper.models import trained_lenet


def test_trained_lenet_knows_cifar10() -> None:
    model = trained_lenet()
    images = embedded()
    x = CIFAR10_NORM.apply(images.images.permute(0, 3, 1, 2).float() / 255)
    with torch.no_grad():
        right = (model(x).argmax(1) == images.labels).double().mean().item()
    assert not model.training
    assert right > 0.45
