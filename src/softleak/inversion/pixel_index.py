"""This module finds which pixel each entry of a layer's input is, by running the model.

The model sees images whose pixels are the digits of their own numbers. A layer that reads patches
of the image, however they are cut and ordered, then shows the numbers of its pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softleak.errors import ModelError
from softleak.forward import forward_one
from softleak.input_spec import Shape

DIGIT_BASE = 128  # every number format holds such integers exactly
OUTSIDE = -1  # the number of a place that holds no pixel, such as padding


def pixel_layers(model: nn.Module, shape: Shape) -> Iterator[tuple[str, Tensor]]:
    """Yield each linear layer or convolution that reads patches of the image, by name.

    With it comes the number (N, K) of the pixel behind each entry of each of its N patches, in
    the order of the columns of its weight (d, K).
    """
    readers: dict[str, nn.Module] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and _plain(module))
    }
    places = math.prod(shape)
    digits = max(math.ceil(math.log(max(places, 2), DIGIT_BASE)), 1)
    seen = [_entering(model, readers, _digit(shape, place)) for place in range(digits)]
    for name, module in readers.items():
        if not all(name in run for run in seen):
            continue
        numbers = sum(run[name].double() * DIGIT_BASE**k for k, run in enumerate(seen))
        assert isinstance(numbers, Tensor)
        if _are_pixels(numbers, [run[name] for run in seen], places):
            patches = _patches(module, numbers)
            if len(patches) > 1:
                yield name, patches


def _plain(conv: nn.Conv2d) -> bool:
    return conv.groups == 1 and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def _digit(shape: Shape, place: int) -> Tensor:
    numbers = torch.arange(math.prod(shape))
    digits: Tensor = numbers // DIGIT_BASE**place % DIGIT_BASE
    return digits.double().reshape(shape)


def _entering(model: nn.Module, layers: dict[str, nn.Module], x: Tensor) -> dict[str, Tensor]:
    """Return the input of each layer that was called once."""
    seen: dict[str, list[Tensor]] = {name: [] for name in layers}

    def hook(name: str) -> torch.utils.hooks.RemovableHandle:
        def look(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen[name].append(inputs[0].detach())

        return layers[name].register_forward_pre_hook(look)

    handles = [hook(name) for name in layers]
    try:
        with torch.no_grad():
            forward_one(model, x)
    except ModelError:
        return {}
    finally:
        for handle in handles:
            handle.remove()
    return {name: calls[0] for name, calls in seen.items() if len(calls) == 1}


def _are_pixels(numbers: Tensor, digits: list[Tensor], places: int) -> bool:
    """Return whether a layer's input shows pixels and nothing else, and each of them."""
    whole = all(bool(((d == d.round()) & (d >= 0) & (d < DIGIT_BASE)).all()) for d in digits)
    if not whole or numbers.max() >= places:
        return False
    return int(torch.unique(numbers.long()).numel()) == places


def _patches(module: nn.Module, numbers: Tensor) -> Tensor:
    """Return the pixels (N, K) that enter each of the N products of a layer."""
    if isinstance(module, nn.Linear):
        return numbers.reshape(-1, numbers.shape[-1]).long()
    assert isinstance(module, nn.Conv2d)
    assert not isinstance(module.padding, str)
    # Padding becomes the number 0 of a pixel, so numbers are shifted by one and back.
    columns = F.unfold(
        numbers + 1, module.kernel_size, module.dilation, module.padding, module.stride
    )
    return columns[0].T.long() + OUTSIDE
