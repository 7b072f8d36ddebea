"""A model that softleak was not tuned to, and how to build it."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.adversary.training import train

IMAGE = (3, 32, 32)
VECTOR = (20,)


@dataclass(frozen=True)
class Stranger:
    """A recipe for one model of the zoo.

    Attributes:
        name: what the tables call it.
        group: the rows of the table it is counted in.
        build: makes the model, with weights drawn from torch's global generator.
        shape: the shape of one input.
        trained: how many steps it is trained on its pool, so that it becomes confident.
        loud: a factor on the weights of the last linear layer, which makes the softmax saturate.
        train_mode: whether clients run it in train mode.
        dtype: what it computes in.
        most: how many recoveries are tried at most, where each takes long.
    """

    name: str
    group: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = IMAGE
    trained: int = 0
    loud: float = 1.0
    train_mode: bool = False
    dtype: torch.dtype = torch.float32
    most: int = 10**9

    def make(self, seed: int = 0) -> nn.Module:
        """The model, the same for the same seed; the global generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number_of(seed, self.name))
            model = self.build()
            if self.trained:
                train(model, self.shape, self.trained)
        if self.loud != 1.0:
            _raise_voice(model, self.loud)
        return model.to(self.dtype).train(self.train_mode)


def number_of(*parts: object) -> int:
    """A seed that is the same in every process for the same parts."""
    return zlib.crc32("/".join(map(str, parts)).encode())


def _raise_voice(model: nn.Module, factor: float) -> None:
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    with torch.no_grad():
        linears[-1].weight.mul_(factor)
