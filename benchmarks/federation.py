"""Measure what softleak in a federation relies on: weight differences, batches, many clients.

python -m benchmarks.federation [--samples 4]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import softleak as sl
from softleak.audit import NamedShare, Options, Truth, audit_shares, prepared
from softleak.core.knowledge import Knowledge
from softleak.core.subject import Subject
from softleak.labels.composition import BatchReader
from softleak.labels.evidence.probes import evidence_of
from softleak.labels.recover import recover
from softleak.paper import data, models

SHAPE = (3, 32, 32)
UNKNOWN = Knowledge(scale="unknown")
RATES = (1.0, 0.1, 0.01)
CLIENTS = 50
BATCHES, SIZES = 20, (2, 8, 32)


def tanh_lenet() -> nn.Module:
    """Return the network of the example."""
    return models.lenet(activation=nn.Tanh).eval()


def mlp() -> nn.Module:
    """Return a network whose head has a bias."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 256), nn.ReLU(), nn.Linear(256, 10)).eval()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "LeNet, trained": models.trained_lenet,
    "LeNet": lambda: models.lenet().eval(),
    "LeNet with tanh": tanh_lenet,
    "LeNet with ReLU": lambda: models.lenet(activation=nn.ReLU).eval(),
    "MLP, head with bias": mlp,
    "ResNet20, head with bias": lambda: models.resnet20().eval(),
}


def updates(model: nn.Module, count: int, lr: float) -> list[tuple[sl.GradientShare, Truth]]:
    """Return the shares of single samples as they come out of differences of float32 weights."""
    before = {name: w.detach().clone() for name, w in model.state_dict().items()}
    found = []
    for s in data.samples(data.embedded(), data.Hard(), count, 0, data.CIFAR10_NORM):
        g = sl.capture(model, s.x, s.y)
        after = {name: w - lr * g[name] for name, w in before.items()}
        update = sl.GradientShare.from_update(before, after, lr=lr)
        found.append((update, Truth(s.y, s.x)))
    return found


def differences(samples: int) -> None:
    """Print how labels and images come back from weight differences, by learning rate."""
    print("| network | learning rate | known | exact labels | largest error | images | PSNR |")
    print("|---|---|---|---|---|---|---|")
    for name in ("LeNet with tanh", "LeNet, trained"):
        torch.manual_seed(0)
        model = NETWORKS[name]()
        subject = Subject.of(model, SHAPE)
        for lr in RATES:
            known = Options(normalisation=data.CIFAR10_NORM, views=False)
            for options in (known, replace(known, knowledge=UNKNOWN)):
                row(name, subject, lr, updates(model, samples, lr), options)


def row(
    name: str,
    subject: Subject,
    lr: float,
    pairs: list[tuple[sl.GradientShare, Truth]],
    options: Options,
) -> None:
    """Print one line of the table of differences."""
    named = [NamedShare("", prepared(subject, share, options), truth) for share, truth in pairs]
    reports = list(audit_shares(subject, named, options))
    scores = [report.score for report in reports if report.score is not None]
    exact = [s.label_error for s in scores if s.label_error is not None and s.label_error < 1e-3]
    quality = [score.psnr for score in scores if score.psnr is not None]
    seen = sum(report.input.leaked for report in reports)
    print(
        f"| {name} | {lr:g} | {options.knowledge.scale} | {len(exact)} of {len(pairs)} | "
        f"{max(exact, default=float('nan')):.0e} | {seen} of {len(pairs)} | "
        f"{min(quality):.0f} to {max(quality):.0f} dB |"
    )


def clients() -> None:
    """Print how long the labels of many clients take in one pass."""
    torch.manual_seed(0)
    model = tanh_lenet()
    subject = Subject.of(model, SHAPE)
    subject.once(evidence_of)
    shares = [share for share, _ in updates(model, CLIENTS, 0.1)]
    print("\n| updates at once | learning rate | labels proved | ms each |\n|---|---|---|---|")
    for knowledge in (Knowledge(), UNKNOWN):
        start = time.perf_counter()
        found = recover(subject, shares, knowledge)
        each = 1000 * (time.perf_counter() - start) / CLIENTS
        proved = sum(recovery.status is sl.Status.UNIQUE for recovery in found)
        print(f"| {CLIENTS} | {knowledge.scale} | {proved} | {each:.1f} |")


def batches() -> None:
    """Print how many samples are counted in their class, and how many classes are proved."""
    images = data.embedded()
    x = data.CIFAR10_NORM.apply(images.images.permute(0, 3, 1, 2).float() / 255)
    print("\n| network | samples | counted right | classes proved | proved wrongly | at least |")
    print("|---|---|---|---|---|---|")
    for name, make in NETWORKS.items():
        torch.manual_seed(0)
        model = make()
        reader = BatchReader.of(Subject.of(model, SHAPE))
        for size in SIZES:
            print(f"| {name} | {size} | {counted(model, reader, x, images.labels, size)} |")


def counted(model: nn.Module, reader: BatchReader, x: Tensor, y: Tensor, size: int) -> str:
    """Return the figures of some batches; in every second one, half the samples share a class."""
    right = present = there = wrong = least = 0
    for seed in range(BATCHES):
        picked = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:size]
        if seed % 2:
            one = (y == seed // 2).nonzero()[: size // 2, 0]
            picked = torch.cat([picked[: size - len(one)], one])
        model.zero_grad()
        F.cross_entropy(model(x[picked]), y[picked]).backward()  # type: ignore[no-untyped-call]
        grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        found = reader.read(sl.GradientShare(grads, SHAPE), size)
        true = torch.bincount(y[picked], minlength=10)
        right += 0 if found.counts is None else int(torch.minimum(found.counts, true).sum())
        present += sum(int(true[c]) > 0 for c in found.present)
        wrong += sum(int(true[c]) == 0 for c in found.present)
        there += int((true > 0).sum())
        least += found.gradients
    return (
        f"{right / (BATCHES * size):.1%} | {present / there:.0%} | {wrong} | {least / BATCHES:.1f}"
    )


def main() -> None:
    """Print all three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=4, help="images per row")
    given = parser.parse_args()
    torch.set_num_threads(1)
    clients()
    batches()
    print()
    differences(given.samples)


if __name__ == "__main__":
    main()
