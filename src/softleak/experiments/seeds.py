"""The seeds that every experiment starts from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Seeds:
    """This is the seeds of all random numbers in an experiment.

    A repetition adds its number to the seeds of samples and noise; the weights stay the same.

    Attributes:
        samples: the seed of the images and labels of the first repetition.
        weights: the seed of the initial weights of a network.
        noise: the seed of the noise that is added to shares in the first repetition.
    """

    samples: int = 1
    weights: int = 0
    noise: int = 2


SEEDS = Seeds()
