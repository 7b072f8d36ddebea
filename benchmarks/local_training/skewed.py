"""Class proportions of skewed clients, beside the counts of the iLRG-style baseline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import softleak as sl
from benchmarks.local_training.cells import network
from softleak import data
from softleak.labels.batch import BatchReader
from softleak.labels.local.proportions import (
    PROPORTIONS,
    ProportionReader,
    StandIns,
    _draw,
    _draw_counts,
)
from softleak.labels.local.recipe import as_gradient

CLIENT = sl.Client(lr=0.01, epochs=1, batch_size=32, momentum=0.9)


def stand_ins(path: Path) -> StandIns:
    """Return the normalised images of a pack with their classes."""
    images = data.load_pack(path)
    pixels = torch.stack([images.pixels(i) for i in range(len(images.labels))])
    return StandIns(data.CIFAR10_NORM.apply(pixels).float(), images.labels)


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
    public = stand_ins(folder / "cifar10_train10k.npz")
    own = stand_ins(folder / "cifar10_test.npz")
    settings = replace(PROPORTIONS, runs=runs)
    kinds: dict[str, StandIns | None] = {"images": public}
    if noise:
        kinds["noise"] = None
    readers = {
        kind: ProportionReader.of(subject, CLIENT, samples, held, settings)
        for kind, held in kinds.items()
    }
    baseline = BatchReader.of(subject)
    steps = len(CLIENT.batches(samples, torch.device("cpu")))
    one_by_one = replace(CLIENT.training, epochs=None, steps=steps)
    random, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    off: dict[str, list[float]] = {kind: [] for kind in (*readers, "baseline")}
    held: dict[str, list[float]] = {kind: [] for kind in readers}
    for _ in range(clients):
        x, y = _draw(subject, _draw_counts(random, 10, samples, PROPORTIONS), own, generator)
        true = torch.bincount(y, minlength=10).double() / samples
        share = CLIENT.share(subject.model, x, y)
        for kind, reader in readers.items():
            found = reader.read(share)
            off[kind].append(float((found.mean - true).abs().sum()))
            inside = (found.interval[0] <= true) & (true <= found.interval[1])
            held[kind].append(float(inside.double().mean()))
        gradient = as_gradient(subject, replace(share, made_by=one_by_one))
        counts = baseline.read(gradient, samples).counts
        if counts is not None:
            off["baseline"].append(float((counts / samples - true).abs().sum()))
    errors = ", ".join(f"{kind} {np.mean(v):.3f}" for kind, v in off.items() if v)
    holds = ", ".join(f"{kind} {100 * np.mean(v):.0f} %" for kind, v in held.items())
    return (
        f"{name} {samples} samples, {runs} simulated and {clients} real clients: "
        f"mean L1 {errors}; intervals hold {holds}"
    )
