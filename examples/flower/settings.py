"""The federation: its size, its network, and who holds which image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak import data, models
from softleak.audit import Leak

NORM = data.CIFAR10_NORM
HELD_OUT = 50  # images no client has
SEED = 0


@dataclass(frozen=True)
class Settings:
    """Every client has one image, and takes one step on it a round."""

    clients: int = 20
    rounds: int = 2
    size: int = 32  # pixels a side
    attacked: int = 4  # updates a round whose image the server attacks
    lr: float = 0.1
    seeds: int = 2  # trials of the guard's search
    hide_class: bool = True  # and not the image alone

    @property
    def stop(self) -> frozenset[Leak]:
        """What the guard is to stop."""
        return frozenset({Leak.CLASS, Leak.INPUT} if self.hide_class else {Leak.INPUT})

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of an input."""
        return 3, self.size, self.size

    def network(self) -> nn.Module:
        """The paper's LeNet with tanh: one that learns something within a few rounds."""
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            return models.lenet(image=self.size, activation=nn.Tanh)

    def held_out(self) -> tuple[Tensor, Tensor]:
        """Images (N, 3, H, W) and classes (N,) nobody trains on."""
        return _pictures(self.size, _order()[:HELD_OUT])

    def images(self) -> tuple[Tensor, Tensor]:
        """Images (clients, 3, H, W) and classes (clients,): one a client."""
        order = _order()[HELD_OUT:]
        return _pictures(self.size, order[torch.arange(self.clients) % len(order)])


def _order() -> Tensor:
    return torch.randperm(len(data.embedded()), generator=torch.Generator().manual_seed(SEED))


def _pictures(size: int, chosen: Tensor) -> tuple[Tensor, Tensor]:
    images = data.embedded().resized(size).subset(chosen)
    x = torch.stack([images.pixels(index) for index in range(len(images))])
    return NORM.apply(x), images.labels
