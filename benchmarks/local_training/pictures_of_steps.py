"""Images behind several local steps: of batches on an MLP, of single samples on a LeNet."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

import softleak as sl
from benchmarks.local_training.cells import SHAPE, network
from softleak.batches.recover import read_batch
from softleak.matching.unrolled import UnrolledMatching
from softleak.paper import data

SHARP, RECOGNISABLE = 60.0, 20.0  # dB


def drawn(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return different images (N, …) with smoothed labels (N, C)."""
    images = data.embedded()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:count]
    x = torch.stack([images.pixels(i) for i in order.tolist()])
    y = torch.nn.functional.one_hot(images.labels[order], 10).double()
    return data.CIFAR10_NORM.apply(x).float(), 0.9 * y + 0.01


def psnr(found: Tensor, true: Tensor) -> float:
    """Return the PSNR in dB of pixels from 0 to 1."""
    a, b = (data.CIFAR10_NORM.invert(one.double().reshape(SHAPE)) for one in (found, true))
    return float(-10 * (a - b).square().mean().log10())


def batches(settings: str, samples: int, updates: int, seed: int) -> str:
    """Count the images of a batch that are found behind an update of an MLP."""
    subject, model = network("mlp", False)
    client, counts, worst = sl.Client.parse(settings), [], float("inf")
    start = time.perf_counter()
    for number in range(updates):
        x, y = drawn(samples, seed + number)
        share = client.share(model, x, y)
        found = read_batch(subject, share, sl.Knowledge()).inputs
        best = [max((psnr(f, one) for f in found), default=0.0) for one in x] if (
            found is not None) else [0.0] * samples  # fmt: skip
        counts.append(sum(one >= SHARP for one in best))
        worst = min(worst, min(best))
    return (
        f"mlp {samples} samples {settings}, {updates} updates: images at {SHARP:.0f} dB or more, "
        f"each update {counts}; worst image {worst:.0f} dB; {time.perf_counter() - start:.0f} s"
    )


def single(name: str, settings: str, updates: int, seed: int) -> str:
    """Return how good the images of single-sample clients are that matching finds."""
    subject, model = network(name, False)
    client, found = sl.Client.parse(settings), []
    start = time.perf_counter()
    x, y = drawn(updates, seed)
    for image, label in zip(x, y, strict=True):
        share = client.share(model, image, label)
        found.append(psnr(UnrolledMatching()(subject, share).input, image))
    good = sum(one >= RECOGNISABLE for one in found)
    return (
        f"{name} {settings}: median {statistics.median(found):.0f} dB, {good} of {updates} at "
        f"{RECOGNISABLE:.0f} dB or more; {', '.join(f'{one:.0f}' for one in found)}; "
        f"{time.perf_counter() - start:.0f} s"
    )
