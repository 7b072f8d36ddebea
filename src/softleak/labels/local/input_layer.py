"""This module reads one sample's input off a fully connected first layer, whatever the steps.

The input never changes while weights do, so the mean gradient of the first layer is exactly
``d xᵀ``, and that of its bias is ``d``: every number of steps gives the same quotient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.factors import RANK
from softleak.input_shapes import random_input
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True, eq=False)
class ReadInput:
    """This is an input (1, …) of one sample, and the standard error of an entry."""

    x: Tensor
    error: float


def first_linear(subject: Subject) -> str | None:
    """Return the name of a linear layer with a bias that is applied to the flattened input."""
    shape = subject.tensor_shape
    if shape is None:
        return None
    drawn = random_input(shape, 0, torch.Generator().manual_seed(0))
    if not isinstance(drawn, Tensor):
        return None
    x = drawn[None]
    seen: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_pre_hook(lambda _, given, name=name: seen.update({name: given[0]}))
        for name, module in subject.model.named_modules()
        if isinstance(module, nn.Linear) and module.bias is not None
    ]
    like = next(subject.model.parameters())
    x = x.to(like.device, like.dtype)
    try:
        with torch.no_grad():
            subject.model(x)
    except Exception:  # the model's own code may raise anything
        return None
    finally:
        for hook in hooks:
            hook.remove()
    same = [n for n, given in seen.items() if given.numel() == x.numel()
            and torch.equal(given.flatten(), x.flatten())]  # fmt: skip
    return same[0] if same else None


def read_input(subject: Subject, mean: GradientShare) -> ReadInput | None:
    """Return the input behind a mean gradient; None if no first layer gives one sample's.

    Args:
        subject: the model.
        mean: the mean gradient of all steps, as ``mean_gradient`` returns it.
    """
    name = subject.once(first_linear)
    weight, bias = f"{name}.weight", f"{name}.bias"
    if name is None or weight not in mean or bias not in mean:
        return None
    G, d = mean[weight].double(), mean[bias].double()
    size = float(d.square().sum())
    if size == 0:
        return None
    x = d @ G / size
    relative = mean.resolution(weight, subject.head.dtype)
    noise = mean.noise(weight) + relative * float(G.abs().max())
    own = mean.noise(bias) + relative * float(d.abs().max())
    left = float((G - torch.outer(d, x)).norm())
    # The rows of the bias round too, times the input.
    expected = float(G.numel() ** 0.5 * noise + own * len(d) ** 0.5 * x.norm())
    if left > RANK.fewest_roundings * expected:
        return None
    # What is left of so many rows shows how large the roundings really were.
    seen = min(max(left / expected, torch.finfo(torch.double).eps), 1.0)
    error = seen * (noise + own * float(x.square().mean().sqrt())) / size**0.5
    return ReadInput(x.reshape(1, *subject.expected_tensor_shape), error)
