"""Count wrong claims beside labels of one sample: classes of updates, batches, local training.

    python -m tests.properties.claims_adversary --classes 3000 --batches 2500 --training 2500

A claim is wrong if a class that is proved present is of no sample, if the bounds of a count exclude
the truth, or if a UNIQUE label is further than its error from that of every sample.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

import softleak as sl
from softleak.batches.recover import read_batch
from softleak.core.knowledge import Knowledge
from softleak.core.subject import Subject
from tests.integration import strangers as s
from tests.properties.test_wrong_claims import (
    CLASSES,
    SIGNED,
    WIDTH,
    composed,
    excluded,
    false_classes,
    feature,
    pooled,
    smoothed,
    sure_head,
    update,
    wrong,
)

Counts = Counter[str]  # what was tried, claimed and wrong, by kind


def classes(tries: int) -> Counts:
    """Claim classes behind smoothing, signed features, momentum, decay and differences."""
    found: Counts = Counter()
    optimisers: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
        "decay": lambda p: torch.optim.SGD(p, 0.05, weight_decay=0.05),
        "AdamW": lambda p: torch.optim.AdamW(p, 1e-3),
        "delta": lambda p: torch.optim.SGD(p, 0.05),
    }
    kinds = ("smoothed", "signed", *optimisers)
    for seed in range(tries):
        kind, source = kinds[seed % len(kinds)], torch.Generator().manual_seed(seed)
        shape: tuple[int, ...] = (s.WIDTH,)
        model = s.made((s.classifier, s.bare)[seed // 7 % 2], seed, gain=(1.0, 5.0)[seed // 11 % 2])
        if kind == "signed":
            model, shape = pooled(list(SIGNED.values())[seed // 6 % len(SIGNED)]).eval(), (1, 8, 8)
        size = (1, 4, 16)[seed // 13 % 3]
        x, y = torch.randn(size, *shape, generator=source), torch.randint(6, (size,))
        if kind in optimisers:
            steps = 1 if kind == "AdamW" else (1, 3)[seed // 17 % 2]
            after = s.trained(model, [(x, y)] * steps, optimisers[kind])
            share = update(model, after, shape, (0.05, None)[seed // 19 % 2])
        else:
            weight = (0.05, 0.1, 0.2)[seed // 5 % 3] if kind == "smoothed" else 0.0
            share = sl.GradientShare(s.gradient(model, x, y, s.smoothing(weight)), shape)
        claim = composed(model, share, samples=(size, None)[seed // 23 % 2])
        false, out = false_classes(claim, y), excluded(claim, y) if size > 1 else []
        found.update({
            f"{kind}: tried": 1, f"{kind}: claimed": len(claim.present),
            f"{kind}: wrong": len(false) + len(out),
        })  # fmt: skip
    return found


def batches(tries: int) -> Counts:
    """Claim labels of batches whose size or scale is another than was said, or nobody said."""
    found: Counts = Counter()
    for seed in range(tries):
        source = torch.Generator().manual_seed(seed)
        model = sure_head((5.0, 20.0, 60.0)[seed % 3])
        size = (2, 3)[seed // 3 % 2]
        named = torch.randint(CLASSES, (size,), generator=source).tolist()
        lengths = (0.3 + torch.rand(size, generator=source)).tolist()
        x = torch.stack([feature(c, lengths[i], size * seed + i) for i, c in enumerate(named)])
        y = torch.stack([smoothed(c, 0.3 * float(torch.rand((), generator=source))) for c in named])
        factor = (1.0, 0.5, 0.9, 1.3)[seed // 6 % 4]
        share = sl.GradientShare(s.gradient(model, x, y.float()), (WIDTH,)).scaled(factor)
        said = (size, size, None)[seed // 5 % 3]
        known = Knowledge((sl.Smoothed(), None)[seed // 2 % 2], samples=said)
        answer = read_batch(Subject.of(model, (WIDTH,)), share, known)
        found.update({
            "batches: tried": 1, "batches: claimed": len(answer.proved),
            "batches: wrong": sum(wrong(one, y) for one in answer.proved),
        })  # fmt: skip
    return found


def training(tries: int) -> Counts:
    """Claim labels behind steps of the head whose rates, number or momentum were misstated."""
    found: Counts = Counter()
    schedules = ((1.0,) * 3, (1.1, 1.0, 0.9), (1.5, 1.0, 0.5), (1.05, 0.95), (0.5, 1.5, 1.5, 0.5))
    for seed in range(tries):
        source = torch.Generator().manual_seed(seed)
        model = s.made((s.classifier, s.bare)[seed % 2], seed, gain=(1.0, 3.0)[seed // 2 % 2])
        model[0].requires_grad_(False)
        x = torch.randn(1, s.WIDTH, generator=source)
        hard = F.one_hot(torch.randint(10, (1,), generator=source), s.CLASSES).float()
        y = (0.9 * hard + 0.01, 0.6 * hard + 0.4 * hard.roll(1))[seed // 4 % 2]
        mean, parts = (0.01, 0.03, 0.1)[seed // 8 % 3], schedules[seed // 3 % len(schedules)]
        rates, momentum = [mean * part for part in parts], (0.0, 0.0, 0.5)[seed // 5 % 3]

        def optimiser(p: list[nn.Parameter], momentum: float = momentum) -> torch.optim.Optimizer:
            return torch.optim.SGD([q for q in p if q.requires_grad], 1.0, momentum=momentum)

        after = s.trained(model, [(x, y)] * len(rates), optimiser, rates=rates)
        steps = len(rates) + (0, 0, 1)[seed // 7 % 3]
        client = sl.Client(lr=mean, steps=steps, momentum=(momentum, 0.0)[seed // 11 % 2])
        sent = sl.GradientShare.from_update(model.state_dict(), after, client=client)
        held = {name: g for name, g in sent.items() if name.startswith("2.")}
        share = sl.GradientShare(held, (s.WIDTH,), sent.rounding, made_by=sent.made_by)
        answer = sl.recover_label(model, share, evidence=False)
        found.update({
            "training: tried": 1, "training: claimed": int(answer.status is sl.Status.UNIQUE),
            "training: wrong": int(wrong(answer, y)),
        })  # fmt: skip
    return found


def rows(tries: dict[str, int]) -> Iterator[Counts]:
    """Yield what every part of the suite counted."""
    parts = {"classes": classes, "batches": batches, "training": training}
    yield from (parts[name](count) for name, count in tries.items())


def main() -> None:
    """Run the suite and print what was tried, claimed and wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, count in {"classes": 3000, "batches": 2500, "training": 2500}.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    for counted in rows(vars(parser.parse_args())):
        for what, number in counted.items():
            print(f"{what:24} {number}", flush=True)


if __name__ == "__main__":
    main()
