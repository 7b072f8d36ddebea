"""The settings of the federation: its size, its network, and which client holds which image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from softleak.audit import Leak
from softleak.audit.sweeps import PLAIN, TREATMENTS, Treatment
from softleak.paper import data, models

NORM = data.CIFAR10_NORM
HELD_OUT_IMAGES = 50  # the number of images that no client has
EXAMPLE_SEED = 0  # the seed of weights, images and noise


@dataclass(frozen=True)
class Settings:
    """A federation in which every client has one image, and takes one step on it per round.

    Attributes:
        clients: the number of clients.
        rounds: the number of rounds.
        size: the height and width of an image in pixels.
        attacked: the number of updates per round whose image the server attacks.
        lr: the learning rate of the clients.
        seeds: the number of trials for each setting of a guard's noise.
        hide_class: whether the guard hides the class as well as the image.
        noise_only: whether the guard adds noise alone, and neither prunes nor clips before it.
        actors: the number of processes that simulate clients; 0 means one per core.
    """

    clients: int = 20
    rounds: int = 2
    size: int = 32
    attacked: int = 4
    lr: float = 0.1
    seeds: int = 2
    hide_class: bool = True
    noise_only: bool = False
    actors: int = 0

    @property
    def backend(self) -> dict[str, dict[str, Any]]:
        """How Flower's simulation starts its processes, each of which imports torch."""
        cores = {"init_args": {"num_cpus": self.actors}} if self.actors else {}
        return {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, **cores}

    @property
    def treatments(self) -> tuple[Treatment, ...]:
        """What the guard may do to an update before it adds noise."""
        return (PLAIN,) if self.noise_only else TREATMENTS

    @property
    def stop(self) -> frozenset[Leak]:
        """The leaks that the guard is told to stop."""
        return frozenset({Leak.CLASS, Leak.INPUT} if self.hide_class else {Leak.INPUT})

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape (C, H, W) of an input."""
        return 3, self.size, self.size

    def network(self) -> nn.Module:
        """Return the paper's LeNet with tanh, which learns something within a few rounds."""
        with torch.random.fork_rng():
            torch.manual_seed(EXAMPLE_SEED)
            return models.lenet(image=self.size, activation=nn.Tanh)

    def held_out(self) -> tuple[Tensor, Tensor]:
        """Return images (N, 3, H, W) and classes (N,) that nobody trains on."""
        return _pictures(self.size, _order()[:HELD_OUT_IMAGES])

    def images(self) -> tuple[Tensor, Tensor]:
        """Return images (clients, 3, H, W) and classes (clients,), one per client."""
        order = _order()[HELD_OUT_IMAGES:]
        return _pictures(self.size, order[torch.arange(self.clients) % len(order)])


def _order() -> Tensor:
    """Return the numbers of all embedded images in a random order."""
    return torch.randperm(
        len(data.embedded()), generator=torch.Generator().manual_seed(EXAMPLE_SEED)
    )


def _pictures(size: int, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the chosen images as inputs, with their classes."""
    images = data.embedded().resized(size).subset(chosen)
    x = torch.stack([images.pixels(index) for index in range(len(images))])
    return NORM.apply(x), images.labels
