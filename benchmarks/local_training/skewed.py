"""Class proportions of skewed clients, beside the counts of the iLRG-style baseline."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import softleak as sl
from benchmarks.local_training.cells import network
from softleak.core.client import as_gradient
from softleak.labels.composition import BatchReader
from softleak.labels.local.proportions import (
    ProportionReader,
    StandIns,
    draw_client,
    draw_counts,
)
from softleak.paper import data

CLIENT = sl.Client(lr=0.01, epochs=1, batch_size=32, momentum=0.9)


def stand_ins(path: Path) -> StandIns:
    """Return the normalised images of a pack with their classes."""
    images = data.load_pack(path)
    pixels = torch.stack([images.pixels(i) for i in range(len(images.labels))])
    return StandIns(data.CIFAR10_NORM.apply(pixels).float(), images.labels)


@dataclass(frozen=True, eq=False)
class Readers:
    """What reads the classes of one client: our readers by what they were fitted to, and iLRG's."""

    subject: sl.Subject
    samples: int
    ours: dict[str, ProportionReader]
    baseline: BatchReader

    def errors(self, share: sl.GradientShare, true: Tensor) -> dict[str, float]:
        """Return the L1 error of every reader that has an answer, by its name."""
        found = {kind: reader.read(share).mean for kind, reader in self.ours.items()}
        steps = len(CLIENT.batches(self.samples, torch.device("cpu")))
        one_by_one = replace(CLIENT.training, epochs=None, steps=steps)
        gradient = as_gradient(self.subject, replace(share, made_by=one_by_one))
        counts = self.baseline.read(gradient, self.samples).counts
        if counts is not None:
            found["baseline"] = counts / self.samples
        return {kind: float((part - true).abs().sum()) for kind, part in found.items()}

    def held(self, share: sl.GradientShare, true: Tensor) -> dict[str, float]:
        """Return which part of the intervals of every reader of ours holds the truth."""
        intervals = {kind: reader.read(share).interval for kind, reader in self.ours.items()}
        return {
            kind: float(((low <= true) & (true <= high)).double().mean())
            for kind, (low, high) in intervals.items()
        }


def proportions(
    name: str,
    samples: int,
    clients: int,
    folder: Path,
    seed: int,
    runs: int,
    noise: bool,
    weights: Path | None = None,
) -> str:
    """Read the proportions of many clients, and return errors and how often intervals hold.

    Args:
        name: the network.
        samples: the number of samples of every client.
        clients: the number of clients that are read.
        folder: the folder of the CIFAR-10 packs.
        seed: the seed of the clients.
        runs: the number of simulated clients that a reader is fitted to.
        noise: whether a second reader is fitted to clients with noise for images.
        weights: a checkpoint of the network, in place of its initial weights.
    """
    subject, _ = network(name, False, weights)
    kinds: dict[str, StandIns | None] = {"images": stand_ins(folder / "cifar10_train10k.npz")}
    kinds |= {"noise": None} if noise else {}
    ours = {
        kind: ProportionReader.of(subject, CLIENT, samples, public, runs)
        for kind, public in kinds.items()
    }
    readers = Readers(subject, samples, ours, BatchReader.of(subject))
    off, held = _scores(readers, stand_ins(folder / "cifar10_test.npz"), clients, seed)
    errors = ", ".join(f"{kind} {np.mean(v):.3f}" for kind, v in off.items())
    holds = ", ".join(f"{kind} {100 * np.mean(v):.0f} %" for kind, v in held.items())
    return (
        f"{name} {samples} samples, {runs} simulated and {clients} real clients: "
        f"mean L1 {errors}; intervals hold {holds}"
    )


def _scores(
    readers: Readers, own: StandIns, clients: int, seed: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return errors, and the parts of intervals that hold, of clients with images of ``own``."""
    subject, samples = readers.subject, readers.samples
    random, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    off, held = defaultdict(list), defaultdict(list)
    for _ in range(clients):
        x, y = draw_client(subject, draw_counts(random, 10, samples), own, generator)
        true = torch.bincount(y, minlength=10).double() / samples
        share = CLIENT.share(subject.model, x, y)
        for kind, error in readers.errors(share, true).items():
            off[kind].append(error)
        for kind, part in readers.held(share, true).items():
            held[kind].append(part)
    return off, held
