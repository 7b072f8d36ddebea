"""Count wrong claims: classes of updates, labels of batches and of local training, proved inputs.

    python -m tests.properties.claims_adversary --classes 3000 --batches 2500 --training 2500 \
        --inputs 600 --first 0

Every part begins at the seed ``--first``, so that a long run can be cut into pieces, and fresh
seeds follow. A claim is wrong if a class that is proved present is of no sample, if the bounds of
a count exclude the truth, if a UNIQUE label is further than its error from that of every sample,
or if an input is PROVED that is not the true one, or of which another one sends the same.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import softleak as sl
from softleak.batches.recover import read_batch
from softleak.core.knowledge import Knowledge
from softleak.core.subject import Subject
from softleak.labels.local.recover import recover_trained
from softleak.labels.recover import recover
from softleak.matching import GaussNewton
from tests.integration import strangers as s
from tests.properties import twins
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
Optimiser = Callable[..., torch.optim.Optimizer]
TOGETHER = 20  # updates of one model and one stated client, which are recovered together


def classes(seeds: range) -> Counts:
    """Claim classes behind smoothing, signed features, momentum, decay and differences."""
    found: Counts = Counter()
    optimisers: dict[str, Optimiser] = {
        "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
        "decay": lambda p: torch.optim.SGD(p, 0.05, weight_decay=0.05),
        "AdamW": lambda p: torch.optim.AdamW(p, 1e-3),
        "delta": lambda p: torch.optim.SGD(p, 0.05),
    }
    kinds = ("smoothed", "signed", *optimisers)
    for seed in seeds:
        kind, source = kinds[seed % len(kinds)], torch.Generator().manual_seed(seed)
        shape: tuple[int, ...] = (s.WIDTH,)
        model = s.made((s.classifier, s.bare)[seed // 7 % 2], seed, gain=(1.0, 5.0)[seed // 11 % 2])
        if kind == "signed":
            model, shape = pooled(list(SIGNED.values())[seed // 6 % len(SIGNED)]).eval(), (1, 8, 8)
        size = (1, 4, 16)[seed // 13 % 3]
        x, y = torch.randn(size, *shape, generator=source), torch.randint(6, (size,))
        weight = (0.05, 0.1, 0.2)[seed // 5 % 3] if kind == "smoothed" or seed % 4 == 0 else 0.0
        if kind in optimisers:
            steps = 1 if kind == "AdamW" else (1, 3)[seed // 17 % 2]
            after = s.trained(model, [(x, y)] * steps, optimisers[kind], s.smoothing(weight))
            share = update(model, after, shape, (0.05, None)[seed // 19 % 2])
        else:
            share = sl.GradientShare(s.gradient(model, x, y, s.smoothing(weight)), shape)
        claim = composed(model, share, samples=(size, None)[seed // 23 % 2])
        false, out = false_classes(claim, y), excluded(claim, y) if size > 1 else []
        _count(found, kind, seed, len(claim.present), len(false) + len(out))
    return found


def batches(seeds: range) -> Counts:
    """Claim labels of batches whose size or scale is another than was said, or nobody said."""
    found: Counts = Counter()
    for seed in seeds:
        source = torch.Generator().manual_seed(seed)
        model = sure_head((5.0, 20.0, 60.0)[seed % 3])
        size = (2, 3)[seed // 3 % 2]
        named = torch.randint(CLASSES, (size,), generator=source).tolist()
        lengths = (0.3 + torch.rand(size, generator=source)).tolist()
        x = torch.stack([feature(c, lengths[i], size * seed + i) for i, c in enumerate(named)])
        y = torch.stack([smoothed(c, 0.3 * float(torch.rand((), generator=source))) for c in named])
        factor = (1.0, 0.5, 0.9, 1.3)[seed // 6 % 4]
        share = sl.GradientShare(s.gradient(model, x, y.float()), (WIDTH,)).scaled(factor)
        said = (size, size, None, size + 1)[seed // 5 % 4]
        known = Knowledge((sl.Smoothed(), None)[seed // 2 % 2], samples=said)
        answer = read_batch(Subject.of(model, (WIDTH,)), share, known)
        false = sum(wrong(one, y) for one in answer.proved)
        _count(found, "batches", seed, len(answer.proved), false)
    return found


SCHEDULES = ((1.0,) * 3, (1.1, 1.0, 0.9), (1.5, 1.0, 0.5), (0.9, 1.0, 1.1), (1.05, 0.95),
             (0.5, 1.5), (0.5, 1.5, 1.5, 0.5))  # fmt: skip


def training(seeds: range) -> Counts:
    """Claim labels behind steps of the head whose rates, number or momentum were misstated."""
    found: Counts = Counter()
    for start in range(seeds.start, seeds.stop, TOGETHER):
        at = start // TOGETHER
        model = s.made((s.classifier, s.bare)[at % 2], at, gain=(1.0, 3.0)[at // 2 % 2])
        model[0].requires_grad_(False)
        mean, rest = (0.01, 0.03, 0.1)[at // 4 % 3], {"momentum": (0.0, 0.5)[at // 3 % 2]}
        client = sl.Client(lr=mean, steps=(2, 3, 4)[at % 3], **rest)
        made = [_trained(model, seed, mean, client) for seed in range(start, start + TOGETHER)]
        shares, labels = zip(*made, strict=True)
        known, subject = Knowledge(head_only=True), Subject.of(model, (s.WIDTH,))
        # Which other client would explain an update takes long, and claims nothing.
        plain = partial(recover, subject, knowledge=known)
        answers = recover_trained(subject, known, shares, plain, others=False)
        for k, (answer, y) in enumerate(zip(answers, labels, strict=True)):
            unique = answer.status is sl.Status.UNIQUE
            _count(found, "training", start + k, int(unique), int(wrong(answer, y)))
    return found


def _trained(
    model: nn.Module, seed: int, mean: float, client: sl.Client
) -> tuple[sl.GradientShare, Tensor]:
    """Return the update of a client that trains nearly as it says, and its label (1, C)."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(1, s.WIDTH, generator=source)
    hard = F.one_hot(torch.randint(10, (1,), generator=source), s.CLASSES).float()
    y = (0.9 * hard + 0.01, 0.6 * hard + 0.4 * hard.roll(1))[seed % 2]
    rates = [mean * part for part in SCHEDULES[seed % len(SCHEDULES)]]
    momentum = (client.training.momentum, 0.0, 0.9)[seed // 3 % 5 % 3]

    def optimiser(p: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD([q for q in p if q.requires_grad], 1.0, momentum=momentum)

    after = s.trained(model, [(x, y)] * len(rates), optimiser, rates=rates)
    sent = sl.GradientShare.from_update(model.state_dict(), after, client=client)
    held = {name: g for name, g in sent.items() if name.startswith("2.")}
    return sl.GradientShare(held, (s.WIDTH,), sent.rounding, made_by=sent.made_by), y


def inputs(seeds: range) -> Counts:
    """Claim inputs of networks that are symmetric, periodic, even, masked or siamese."""
    found: Counts = Counter()
    for seed in seeds:
        some = twins.KINDS if seed % 5 == 0 else twins.PAIRED
        kind = some[seed // 5 % len(some)]
        model, x, twin = twins.drawn(kind, seed)
        y = torch.randn(5, generator=torch.Generator().manual_seed(seed)).softmax(0).double()
        share = sl.capture(model, x, y)
        answer = sl.reconstruct(
            model, share, sl.recover_label(model, share), optimiser=GaussNewton(), restarts=2
        )
        proved = answer.status is sl.Status.PROVED
        off = float((answer.input - x).abs().max()) > 1e-3
        _count(found, kind.__name__, seed, int(proved), int(proved and (twin is not None or off)))
    return found


def _count(found: Counts, kind: str, seed: int, claimed: int, false: int) -> None:
    """Add one try to the counts, and name its seed if a claim is wrong."""
    found.update({f"{kind}: tried": 1, f"{kind}: claimed": claimed, f"{kind}: wrong": false})
    if false:
        print(f"WRONG {kind}, seed {seed}: {false} of {claimed}", flush=True)


PARTS: dict[str, tuple[Callable[[range], Counts], int]] = {
    "classes": (classes, 3000), "batches": (batches, 2500), "training": (training, 2500),
    "inputs": (inputs, 600),
}  # fmt: skip


def main() -> None:
    """Run the suite and print what was tried, claimed and wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    for name, (_, count) in PARTS.items():
        parser.add_argument(f"--{name}", type=int, default=count, help="the number of tries")
    given = vars(parser.parse_args())
    for name, (run, _) in PARTS.items():
        for what, number in run(range(given["first"], given["first"] + given[name])).items():
            print(f"{what:24} {number}", flush=True)


if __name__ == "__main__":
    main()
