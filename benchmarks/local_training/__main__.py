"""Print tables of docs/results/local-training.md: ``python -m benchmarks.local_training head``."""

from __future__ import annotations

import argparse
from collections import Counter
from itertools import product
from pathlib import Path

import torch

import softleak as sl
from benchmarks.local_training.cells import (
    EXACT,
    Cell,
    drawn,
    measure,
    network,
    off,
    recovered,
    share_of,
    told,
)
from benchmarks.local_training.pictures_of_steps import batches, single
from benchmarks.local_training.same_weights import limits
from benchmarks.local_training.skewed import proportions
from softleak.labels.recover import recover

STEPS, RATES = (1, 2, 5, 10), (0.001, 0.01, 0.1)
MOMENTA, DECAYS = (0.0, 0.9), (0.0, 5e-4)
TABLES = ("head", "whole", "undeclared", "proportions", "batches", "images", "limits")
BATCHES = tuple(
    f"steps=20,batch_size=4,{rest}" for rest in ("lr=0.01", "lr=0.01,momentum=0.9", "lr=0.1")
)
UNDECLARED = {
    "second step": ("lr=0.01,steps=2", "lr=0.01", "steps=2"),
    "momentum": ("lr=0.01,steps=3,momentum=0.9", "lr=0.01,steps=3", "momentum=0.9"),
    "weight decay": ("lr=0.01,weight_decay=0.005", "lr=0.01", "weight"),
    "Adam": ("lr=0.001,optimiser=adam", "lr=0.001", "Adam"),
    "clipping": ("lr=0.0035", "lr=0.01", "clipping"),
}


def main() -> None:
    """Measure one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--networks", nargs="+", default=["lenet", "mlp", "resnet18"])
    parser.add_argument("--labels", nargs="+", default=["smoothed", "mixed"])
    parser.add_argument("--steps", nargs="+", type=int, default=STEPS)
    parser.add_argument("--rates", nargs="+", type=float, default=RATES)
    parser.add_argument("--momenta", nargs="+", type=float, default=MOMENTA)
    parser.add_argument("--decays", nargs="+", type=float, default=DECAYS)
    parser.add_argument("--shares", type=int, default=100)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--data", type=Path, help="the folder of CIFAR-10 packs, for proportions")
    parser.add_argument("--weights", type=Path, help="a checkpoint, for proportions")
    parser.add_argument("--samples", type=int, nargs="+", default=[50, 100, 200, 500])
    parser.add_argument("--runs", type=int, default=60, help="simulated clients, for proportions")
    parser.add_argument("--no-noise", action="store_true", help="fit no reader of noise")
    parser.add_argument("--no-cause", action="store_true", help="look for no undeclared cause")
    parser.add_argument("--clients", nargs="+", help="such as lr=0.01,steps=5, for images")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.table in ("batches", "images"):
        pictures(given)
        return
    for name in given.networks:
        if given.table == "proportions":
            for samples in given.samples:
                words = proportions(
                    name, samples, given.shares, given.data, given.seed, given.runs,
                    not given.no_noise, given.weights,
                )  # fmt: skip
                print(words, flush=True)
        elif given.table == "undeclared":
            undeclared(name, given)
        elif given.table == "limits":
            for kind, lr in product(given.labels, given.rates):
                print(limits(name, kind, lr, given.shares, given.seed), flush=True)
        else:
            cells(name, given)


def pictures(given: argparse.Namespace) -> None:
    """Measure the images behind several steps: of batches, or of single samples."""
    if given.table == "batches":
        for client in given.clients or BATCHES:
            print(batches(client, 16, given.shares, given.seed), flush=True)
        return
    for name in given.networks:
        for client in given.clients or ("lr=0.01,steps=5",):
            print(single(name, client, given.shares, given.seed), flush=True)


def cells(name: str, given: argparse.Namespace) -> None:
    """Measure every cell of one network."""
    subject, _ = network(name, given.table == "head")
    done: list[Cell] = []
    samples = {kind: drawn(subject, kind, given.shares, given.seed) for kind in given.labels}
    for steps, lr, momentum, decay in product(
        given.steps, given.rates, given.momenta, given.decays
    ):
        client = sl.Client(steps=steps, lr=lr, momentum=momentum, weight_decay=decay)
        cells = measure(name, subject, client, samples)
        done += cells
        print(*cells, sep="\n", flush=True)
    sums = [sum(getattr(c, n) for c in done)
            for n in ("exact_stable", "stable", "exact", "shares", "unique", "wrong")]  # fmt: skip
    print(
        f"{name} in all: exact {sums[0]}/{sums[1]} of the stable, {sums[2]}/{sums[3]} of all, "
        f"UNIQUE {sums[4]}, wrong UNIQUE {sums[5]}", flush=True,
    )  # fmt: skip


def undeclared(name: str, given: argparse.Namespace) -> None:
    """Count wrong proofs and right causes where the client is not what was said."""
    subject, _ = network(name, True)
    for cause, (true, said, words) in UNDECLARED.items():
        counts: Counter[str] = Counter()
        for kind in given.labels:
            client, assumed = sl.Client.parse(true), sl.Client.parse(said)
            samples = drawn(subject, kind, given.shares, given.seed)
            sent = [told(share_of(subject, client, one), assumed) for one in samples]
            found = (
                recovered(subject, sent) if given.no_cause else
                recover(subject, sent, sl.Knowledge())
            )  # fmt: skip
            for answer, one in zip(found, samples, strict=True):
                unique = answer.status is sl.Status.UNIQUE
                counts["shares"] += 1
                counts["named"] += words in answer.message
                counts["unique"] += unique
                counts["wrong"] += unique and off(answer, one.y) > EXACT
        print(f"{name} undeclared {cause}: {dict(counts)}", flush=True)


if __name__ == "__main__":
    main()
