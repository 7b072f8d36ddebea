"""Measure labels under other losses than the softmax cross-entropy, cell by cell.

    python -m benchmarks.losses labels --first 0 --shares 20 --data DIR --only lenet
    python -m benchmarks.losses hunt --first 0 --shares 1000
    python -m benchmarks.losses inputs --shares 20
    python -m benchmarks.losses page

``labels`` attacks one sample of every network, head and loss, ``hunt`` looks for UNIQUE labels that
are wrong, and ``inputs`` computes the features of patients behind tabular networks. Each adds rows
to a file, piece by piece (``--first``), and ``page`` writes docs/results/losses.md from all.
Without ``--data`` the embedded images stand in for CIFAR-100 and flowers.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import softleak as sl
from benchmarks.losses_page import page
from benchmarks.transformers.classifiers import library
from softleak.core.forward import forward_batch
from softleak.core.knowledge import Knowledge
from softleak.core.loss import (
    BinaryCrossEntropy,
    CrossEntropy,
    Loss,
    MeanSquaredError,
    stated_loss,
)
from softleak.core.share import Scale
from softleak.core.subject import Subject
from softleak.labels.recover import recover
from softleak.paper import data, models

ROWS = Path("results") / sl.__version__ / "losses.jsonl"
SIZE, MOST = 32, 40  # pixels on a side, and the outputs that are trained
TRAINING_STEPS, TRAINING_BATCH, TRAINING_RATE = 20, 16, 1e-3
RARE = 0.3  # the part of tags that a class has
EXACT = 1e-3  # in L1; of the targets of a regression, a part of their length
TARGETS_EXACT = 1e-4
SMOOTHED = 0.05
BCE, MSE = BinaryCrossEntropy(), MeanSquaredError()
Row = dict[str, Any]


def convnext(outputs: int) -> nn.Module:
    """Return a small ConvNeXt of Hugging Face."""
    config = library().ConvNextConfig(
        image_size=SIZE, patch_size=2, hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 2, 1],
        num_labels=outputs,
    )  # fmt: skip
    made: nn.Module = library().ConvNextForImageClassification(config)
    return made


def vit(outputs: int) -> nn.Module:
    """Return a small ViT of Hugging Face."""
    config = library().ViTConfig(
        image_size=SIZE, patch_size=4, hidden_size=96, num_hidden_layers=3, num_attention_heads=3,
        intermediate_size=192, num_labels=outputs,
    )  # fmt: skip
    made: nn.Module = library().ViTForImageClassification(config)
    return made


NETWORKS: Mapping[str, Callable[[int], nn.Module]] = {
    "lenet": models.lenet,
    "resnet18": models.resnet18_cifar,
    "convnext": convnext,
    "vit": vit,
}


@dataclass(frozen=True)
class Images:
    """Images with tags: a class has each of forty tags or has it not."""

    sets: tuple[data.ImageSet, ...]

    @classmethod
    def at(cls, folder: Path | None) -> Images:
        """Return those of CIFAR-100 and of the flowers, or the embedded ones."""
        if folder is None:
            return cls((data.embedded(),))
        names = ("cifar100_test.npz", "flowers17_224.npz")
        return cls(tuple(data.load_pack(folder / name) for name in names))

    def sample(self, number: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return an input (3, 32, 32) and its tags (40,); the sets take turns."""
        images = self.sets[number % len(self.sets)]
        drawn = data.nth_sample(images, data.Hard(), number, seed, data.CIFAR10_NORM, SIZE)
        table = torch.rand(images.classes, MOST, generator=torch.Generator().manual_seed(0))
        return drawn.x.float(), (table < RARE)[int(drawn.y.argmax())].float()

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Return a batch to train on, which no share is made of."""
        first = number * TRAINING_BATCH
        drawn = [self.sample(first + i, 1) for i in range(TRAINING_BATCH)]
        return torch.stack([x for x, _ in drawn]), torch.stack([y for _, y in drawn])


def trained(name: str, images: Images, steps: int) -> nn.Module:
    """Return a network of forty outputs with a bias, after some steps of Adam."""
    torch.manual_seed(0)
    model = with_head(NETWORKS[name](MOST), MOST, True)
    optimiser = torch.optim.Adam(model.parameters(), lr=TRAINING_RATE)
    for step in range(steps):
        x, y = images.batch(step)
        optimiser.zero_grad()
        torch.autograd.backward(F.binary_cross_entropy_with_logits(forward_batch(model, x), y))
        optimiser.step()
    return model.eval()


def with_head(model: nn.Module, outputs: int, bias: bool) -> nn.Module:
    """Return the model with a last layer of so many outputs, the first of those it has."""
    name = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)][-1]
    old = model.get_submodule(name)
    if not isinstance(old, nn.Linear):
        raise TypeError(name)
    new = nn.Linear(old.in_features, outputs, bias=bias)
    with torch.no_grad():
        new.weight.copy_(old.weight[:outputs])
        if bias and old.bias is not None:
            new.bias.copy_(old.bias[:outputs])
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, new)
    return model


@dataclass(frozen=True)
class Head:
    """A head and the loss behind it."""

    loss: Loss
    outputs: int
    bias: bool

    def label(self, tags: Tensor, number: int, whole: bool) -> Tensor:
        """Return the label of a share: hard, smoothed, and, where more than the head is read, any.

        Targets of a regression are numbers of any size.
        """
        y = tags[: self.outputs].clone()
        generator = torch.Generator().manual_seed(number)
        if isinstance(self.loss, MeanSquaredError):
            return 3 * torch.randn(self.outputs, generator=generator)
        kind = number % (3 if whole else 2) if self.outputs > 1 else 0
        if kind == 2:
            return torch.rand(self.outputs, generator=generator)
        return y * (1 - 2 * SMOOTHED) + SMOOTHED if kind else y


HEADS = (
    *(Head(BCE, outputs, bias) for outputs in (3, 5, 14, 40) for bias in (True, False)),
    Head(BCE, 1, True),
    *(Head(MSE, outputs, True) for outputs in (1, 14)),
)


def labels(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each network, head and part of the share that is read."""
    images = Images.at(options.data)
    for name in NETWORKS:
        for steps in (0, TRAINING_STEPS):
            if options.only not in f"{name} {'trained' if steps else 'untrained'}":
                continue
            model = trained(name, images, steps)
            for head in (one for one in HEADS if one.outputs in options.outputs):
                made = with_head(model_copy(model), head.outputs, head.bias)
                for whole in (True, False) if head.outputs > 1 and head.loss == BCE else (True,):
                    yield {
                        "what": "labels", "network": name, "trained": bool(steps),
                        "loss": head.loss.name, "outputs": head.outputs, "bias": head.bias,
                        "whole": whole, "first": options.first, "shares": options.shares,
                        **attacked(made, head, whole, images, options),
                    }  # fmt: skip


def model_copy(model: nn.Module) -> nn.Module:
    """Return a copy of a model, in eval mode."""
    return copy.deepcopy(model).eval()


def attacked(
    model: nn.Module, head: Head, whole: bool, images: Images, options: argparse.Namespace
) -> Row:
    """Return how many answers are right, of what status, and wrong."""
    subject = Subject.of(model, (3, SIZE, SIZE))
    known = Knowledge(loss=head.loss, head_only=not whole)
    count = dict.fromkeys(("exact", "unique", "wrong", "twins"), 0)
    worst = 0.0
    for number in range(options.first, options.first + options.shares):
        x, tags = images.sample(number, 2)
        y = head.label(tags, number, whole)
        found = recover(subject, [sl.capture(model, x, y, loss=head.loss)], known)[0]
        right = found.label is not None and is_right(found.label, y, head.loss)
        count["exact"] += right
        count["unique"] += found.status is sl.Status.UNIQUE
        count["wrong"] += found.status is sl.Status.UNIQUE and not right
        count["twins"] += is_twins(found, y)
        if found.status is sl.Status.UNIQUE and found.label is not None:
            worst = max(worst, float((found.label.cpu() - y).abs().sum()))
    return {**count, "worst": worst}


def is_right(label: Tensor, y: Tensor, loss: Loss) -> bool:
    """Return whether a label is the true one, as exactly as a success has to be."""
    off = label.double().cpu() - y.double()
    if isinstance(loss, MeanSquaredError):
        return float(off.norm()) <= TARGETS_EXACT * float(y.norm())
    return float(off.abs().sum()) < EXACT


def is_twins(found: sl.Recovery, y: Tensor) -> bool:
    """Return whether the answer is exactly the true label and its opposite."""
    if found.status is not sl.Status.AMBIGUOUS or len(found.solutions) != 2:
        return False
    one, other = (c.label.double().cpu() for c in found.solutions)
    opposite = float((one + other - 1).abs().sum()) < 2 * EXACT
    return opposite and any(is_right(c, y, BCE) for c in (one, other))


WEIGHTS = (0.5, 2.0, 1.0, 3.0, 0.7, 1.5, 0.9, 1.2, 2.5, 0.6, 1.0, 4.0, 0.8, 1.1)
OTHERS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "focal": lambda z, y: (
        (torch.sigmoid(z) - y).square() * F.binary_cross_entropy_with_logits(z, y, reduction="none")
    ).mean(),
    "warm": lambda z, y: F.binary_cross_entropy_with_logits(z / 2, y),
    "huber": F.huber_loss,
    "margin": F.multilabel_soft_margin_loss,
    "dice": lambda z, y: 1 - 2 * (torch.sigmoid(z) * y).sum() / (torch.sigmoid(z) + y).sum(),
}
TRUE: Mapping[str, Callable[[int], Loss]] = {
    "ce": lambda n: CrossEntropy(),
    "weighted ce": lambda n: CrossEntropy(WEIGHTS[:n]),
    "bce": lambda n: BCE,
    "bce sum": lambda n: BinaryCrossEntropy(reduction="sum"),
    "bce pos_weight": lambda n: BinaryCrossEntropy(WEIGHTS[:n]),
    "mse": lambda n: MSE,
    "mse sum": lambda n: MeanSquaredError(reduction="sum"),
}
OUTPUTS = (1, 2, 3, 5, 8, 14)
SCALES = (0.1, 1.0, 7.0)
ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.GELU)
SHARES_OF_ONE = 10  # network
DECAYS = (0.0, 0.0, 5e-4, 1e-6)


def hunt(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each network: how many recoveries are UNIQUE, and how many of these wrong."""
    for first in range(options.first, options.first + options.shares, SHARES_OF_ONE):
        count: dict[str, int] = {"recoveries": 0, "unique": 0, "wrong": 0, "contradicted": 0}
        kept: list[str] = []
        for number in range(first, first + SHARES_OF_ONE):
            for asked, found, y in asked_of(number):
                count["recoveries"] += 1
                count["contradicted"] += not found.fit.holds
                if found.status is not sl.Status.UNIQUE or found.label is None:
                    continue
                count["unique"] += 1
                off = float((found.label.double() - y.double()).abs().sum())
                if off > max(found.error, EXACT):
                    count["wrong"] += 1
                    kept.append(f"{asked}: off by {off:.2g}, claimed {found.error:.2g}")
        yield {"what": "hunt", "first": first, "shares": SHARES_OF_ONE, **count, "kept": kept}


def asked_of(number: int) -> Iterator[tuple[str, sl.Recovery, Tensor]]:
    """Yield answers to one share under every statement of its loss, with the true label.

    Networks, losses, labels, scales and decays are drawn by the number.
    """
    generator = torch.Generator().manual_seed(number)

    def one_of(things: Any) -> Any:  # noqa: ANN401 - of anything
        return list(things)[int(torch.randint(len(things), (), generator=generator))]

    subject = drawn_subject(number // SHARES_OF_ONE)
    model, outputs, bias = subject.model, subject.head.classes, subject.head.has_bias
    true = one_of([*TRUE, *OTHERS])
    loss = TRUE[true](outputs) if true in TRUE else OTHERS[true]
    if outputs == 1 and isinstance(loss, CrossEntropy):
        loss, true = BCE, "bce"
    y, kind = drawn_label(outputs, loss, one_of, generator)
    x = torch.randn(20, generator=generator)
    scale, decay = one_of(SCALES), one_of(DECAYS)
    x, y = x.to(dtype_of(model)), y.to(dtype_of(model))
    share = sent(model, x, y, loss)
    W = dict(model.named_parameters())
    share = share.map(lambda n, g: scale * (g + decay * W[n].detach()))
    said: tuple[Scale | None, ...] = (None, "unknown") if scale != 1 or decay else (None, "known")
    share = replace(share, scale=None)
    whole = one_of((True, False))
    for stated in (None, "ce", "bce", "mse", loss if isinstance(loss, Loss) else "bce"):
        state = one_of(said)
        asked = f"{number}: {true} of {outputs}, {kind}, ×{scale:g}, decay {decay:g}, bias {bias}"
        asked += f", stated {stated}, scale {state}, whole {whole}"
        known = Knowledge(loss=stated_loss(stated), scale=state, head_only=not whole)
        yield asked, recover(subject, [share], known)[0], y


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the precision of a model."""
    return next(model.parameters()).dtype


@lru_cache(maxsize=1)
def drawn_subject(seed: int) -> Subject:
    """Return a small network with logits of all sizes, made ready."""
    generator = torch.Generator().manual_seed(seed)
    outputs, kind, bias = (
        int(torch.randint(count, (), generator=generator))
        for count in (len(OUTPUTS), len(ACTIVATIONS), 2)
    )
    torch.manual_seed(seed)
    head = nn.Linear(24, OUTPUTS[outputs], bias=bool(bias))
    with torch.no_grad():
        head.weight.mul_(10 ** (2 * float(torch.rand((), generator=generator)) - 0.5))
    return Subject.of(nn.Sequential(nn.Linear(20, 24), ACTIVATIONS[kind](), head).eval(), (20,))


def drawn_label(
    outputs: int, loss: object, one_of: Callable[[Any], Any], generator: torch.Generator
) -> tuple[Tensor, str]:
    """Return a label that a loss takes, and its kind in a word."""
    if isinstance(loss, MeanSquaredError) or loss is F.huber_loss:
        kind = one_of(("hard", "numbers", "one-hot"))
        numbers = 2 * torch.randn(outputs, generator=generator)
        if kind == "one-hot":
            return F.one_hot(numbers.argmax(), outputs).float(), kind
        return (numbers > 0).float() if kind == "hard" else numbers, kind
    kind = one_of(("hard", "smoothed", "any"))
    drawn = torch.rand(outputs, generator=generator)
    if isinstance(loss, CrossEntropy):
        hot = F.one_hot(drawn.argmax(), outputs).float()
        return {"hard": hot, "smoothed": 0.9 * hot + 0.1 / outputs, "any": drawn / drawn.sum()}[
            kind
        ], kind
    hard = (drawn < RARE).float()
    return {"hard": hard, "smoothed": 0.9 * hard + 0.05, "any": drawn}[kind], kind


def sent(
    model: nn.Module, x: Tensor, y: Tensor, loss: Loss | Callable[[Tensor, Tensor], Tensor]
) -> sl.GradientShare:
    """Return the gradient of a loss, softleak's or anybody's."""
    if isinstance(loss, Loss):
        return sl.capture(model, x, y, loss=loss)
    value = loss(model(x[None]), y[None])
    slopes = torch.autograd.grad(value, list(model.parameters()))
    names = [n for n, _ in model.named_parameters()]
    return sl.GradientShare(dict(zip(names, slopes, strict=True)), (20,))


TABULAR = (20, 100, 1000)  # features of a patient


def inputs(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each size and loss: how exactly the features of one patient are computed."""
    for width in TABULAR:
        for loss in (BCE, MSE):
            torch.manual_seed(width)
            model = nn.Sequential(
                nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 5)
            ).eval()
            found = []
            for number in range(options.first, options.first + options.shares):
                generator = torch.Generator().manual_seed(number)
                x = torch.rand(width, generator=generator)
                y = (torch.rand(5, generator=generator) < RARE).float()
                share = sl.capture(model, x, y, loss=loss)
                answer = sl.invert(model, share, sl.recover_label(model, share, loss=loss))
                off = (answer.input.reshape(-1).double() - x.double()).square().mean()
                found.append(-10 * math.log10(max(float(off), 1e-30)))
            yield {
                "what": "inputs", "features": width, "loss": loss.name, "first": options.first,
                "shares": options.shares, "least": min(found),
                "hundred": sum(one >= 100 for one in found),
            }  # fmt: skip


def main() -> None:
    """Measure what is asked for and add its rows to the file, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("labels", "hunt", "inputs", "page"))
    parser.add_argument("--first", type=int, default=0, help="the number of the first share")
    parser.add_argument("--shares", type=int, default=20, help="shares of each cell")
    parser.add_argument("--data", type=Path, default=None, help="the folder of data packs")
    parser.add_argument("--only", default="", help='such as "lenet untrained"')
    every = sorted({head.outputs for head in HEADS})
    parser.add_argument("--outputs", type=int, nargs="*", default=every, help="of the heads")
    parser.add_argument("--out", type=Path, default=ROWS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "page":
        page(options.out)
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    measured = {"labels": labels, "hunt": hunt, "inputs": inputs}[options.what]
    for row in measured(options):
        print(json.dumps(row), flush=True)
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
