"""Which inputs a model takes, when nobody says."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from softleak.capture import forward_one
from softleak.errors import ModelError

IMAGE_SIZES = (32, 28, 64, 96, 128, 224, 256, 299, 384)


def accepted_shapes(model: nn.Module) -> Iterator[tuple[int, ...]]:
    """Input shapes the model accepts, by what its layers take; images are tried in usual sizes."""
    shapes: dict[tuple[int, ...], None] = {}  # ordered: the first layer defined is likely the first
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            shapes |= dict.fromkeys((module.in_channels, size, size) for size in IMAGE_SIZES)
        elif isinstance(module, nn.Linear):
            shapes |= dict.fromkeys([(module.in_features,), *_images_of(module.in_features)])
    yield from (shape for shape in shapes if _takes(model, shape))


def _takes(model: nn.Module, shape: tuple[int, ...]) -> bool:
    try:
        with torch.no_grad():
            forward_one(model, torch.zeros(shape))
    except ModelError:
        return False
    return True


def _images_of(features: int) -> Iterator[tuple[int, ...]]:
    for channels in (1, 3):
        side = round((features / channels) ** 0.5)
        if channels * side * side == features:
            yield (channels, side, side)


def random_input(shape: tuple[int, ...], index: int, generator: torch.Generator) -> Tensor:
    """Noise, fine or coarse in turn: coarse noise looks more like a picture to a convolution."""
    if len(shape) == 3 and index % 2:
        small = torch.randn(1, shape[0], 4, 4, generator=generator)
        return nn.functional.interpolate(small, shape[1:], mode="bilinear")[0]
    return torch.randn(shape, generator=generator)
