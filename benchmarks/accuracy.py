"""How often, how exactly and how honestly labels are recovered, cell by cell.

    python -m benchmarks.accuracy --samples 1000 --data DIR [--weights DIR] [--only lenet]

``DIR`` holds data packs; without it the embedded images serve. Cells whose data or trained weights
are not at hand are named and left out.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

import softleak as sl
from softleak import data
from softleak.experiments.networks import NETWORKS, Network
from softleak.experiments.shelf import Shelf
from softleak.experiments.target import Target
from softleak.metrics import distance_to_set, label_error

COLUMNS = (
    "network", "labels", "share", "exact", "ambiguous", "zero", "none", "wrong", "missed",
    "mean L1", "worst L1", "feature", "broken",
)  # fmt: skip
WIDTHS = (38, 9, 5, 12, 9, 4, 4, 5, 6, 7, 8, 8, 6)
WRONG = 1e-3  # in L1: the paper's labels are told apart by less
STRICT = 1e-11  # what one may ask of float64 gradients: UNIQUE only if certified to that


@dataclass(frozen=True)
class Cell:
    """A network, a kind of label, and what the attacker uses."""

    network: str
    augmentation: data.Augmentation
    family: sl.Family | None
    whole_share: bool = False
    dtype: torch.dtype = torch.float32
    unknown_scale: bool = False
    training: bool = False
    tolerance: float = WRONG

    @property
    def share(self) -> str:
        """What the attacker reads of it."""
        return "whole" if self.whole_share else "head"

    @property
    def title(self) -> str:
        """Network and setting, for a table."""
        marks = [
            "train mode" if self.training else "",
            "float64" if self.dtype == torch.float64 else "",
            "unknown scale" if self.unknown_scale else "",
            f"to {self.tolerance:.0e}" if self.tolerance < WRONG else "",
        ]
        return ", ".join([self.network, *filter(None, marks)])


@dataclass(frozen=True)
class Score:
    """What became of the samples of a cell."""

    statuses: Counter[sl.Status]
    wrong: int  # called UNIQUE and more than the tolerance, 1e-3 by default, from the truth
    missed: int  # called AMBIGUOUS and the truth not in the set
    mean_error: float  # over those called UNIQUE
    worst_error: float
    worst_feature: float  # relative
    bound_broken: int  # true error above the predicted one

    @property
    def exact(self) -> int:
        """Samples with the right label, and only it."""
        return self.statuses[sl.Status.UNIQUE] - self.wrong


KINDS: Sequence[tuple[data.Augmentation, sl.Family]] = (
    (data.Smoothing(), sl.Smoothed()),
    (data.Mixup(), sl.Mixed(2)),
    (data.Hard(), sl.OneHot()),
)
HEAD_ONLY = (
    "lenet", "lenet trained", "resnet18", "resnet18 trained", "resnet18_cifar",
    "resnet18_cifar trained", "resnet20 converged", "resnet56 converged", "alexnet",
)  # fmt: skip
WHOLE_SHARE = (
    "lenet", "lenet default", "alexnet", "vgg", "resnet18", "resnet18_cifar", "resnet50 at 224",
    "resnet50 at 224, uniform", "vit", "mlp ReLU", "mlp LeakyReLU", "mlp Sigmoid", "mlp Tanh",
)  # fmt: skip


def cells() -> Iterator[Cell]:
    """Every cell of the table, in its order."""
    for name in HEAD_ONLY:
        for augmentation, family in KINDS:
            yield Cell(name, augmentation, family)
            if not name.startswith("alexnet"):
                yield Cell(name, augmentation, family, dtype=torch.float64)
            if name.endswith("converged") and family == sl.Smoothed():
                yield Cell(name, augmentation, family, dtype=torch.float64, tolerance=STRICT)
    for augmentation, family in KINDS:
        yield Cell("alexnet", augmentation, family, whole_share=True)
    for name in WHOLE_SHARE:
        arbitrary = Cell(name, data.Dirichlet(), None, whole_share=True)
        yield arbitrary
        yield replace(arbitrary, unknown_scale=True)
        for augmentation, family in KINDS:
            yield replace(arbitrary, augmentation=augmentation, family=family, unknown_scale=True)
    yield Cell("resnet18_cifar", data.Dirichlet(), None, whole_share=True, training=True)


def target_of(cell: Cell, network: Network, shelf: Shelf) -> Target:
    """The network under attack and what can be known of it before any share comes."""
    return Target.of(
        network, shelf, evidence=cell.whole_share, dtype=cell.dtype, training=cell.training
    )


def measure(
    cell: Cell, network: Network, shelf: Shelf, samples: int, seed: int = 1,
    target: Target | None = None,
) -> Score:  # fmt: skip
    """Draw the cell's samples, attack their gradients, and only then look at the labels."""
    target = target or target_of(cell, network, shelf)
    features: list[torch.Tensor] = []
    hook = target.model.get_submodule(target.head.name).register_forward_hook(_keep(features))
    generator = torch.Generator().manual_seed(seed)
    shares, truth = [], []
    for number in range(samples):
        sample = network.sample(shelf, cell.augmentation, number, seed)
        factor = 10 ** (4 * float(torch.rand((), generator=generator)) - 2)
        share = target.share(sample)
        shares.append(share.scaled(factor) if cell.unknown_scale else share)
        truth.append(sample.y)
    hook.remove()
    found = sl.recover_labels(
        target.model, shares, family=cell.family, evidence=target.relations, head=target.head,
        scale="unknown" if cell.unknown_scale else "known", tolerance=cell.tolerance,
    )  # fmt: skip
    return _score(found, truth, features, cell.tolerance)


def _keep(features: list[torch.Tensor]) -> Callable[[nn.Module, tuple[torch.Tensor], object], None]:
    return lambda _, inputs, __: features.append(inputs[0][0].detach().double())


def _score(
    found: Sequence[sl.Recovery], truth: Sequence[torch.Tensor], features: Sequence[torch.Tensor],
    tolerance: float,
) -> Score:  # fmt: skip
    unique = [(r, y) for r, y in zip(found, truth, strict=True) if r.status is sl.Status.UNIQUE]
    errors = [label_error(r, y) for r, y in unique]
    ambiguous = [
        (r, y) for r, y in zip(found, truth, strict=True) if r.status is sl.Status.AMBIGUOUS
    ]
    wrong_features = [
        float((r.feature - x).norm() / x.norm())
        for r, x in zip(found, features, strict=True)
        if r.feature is not None and r.feature_error < 1e-2
    ]
    return Score(
        statuses=Counter(r.status for r in found),
        wrong=sum(e >= tolerance for e in errors),
        missed=sum(distance_to_set(r, y) >= tolerance for r, y in ambiguous),
        mean_error=statistics.fmean(errors) if errors else float("nan"),
        worst_error=max(errors, default=float("nan")),
        worst_feature=max(wrong_features, default=float("nan")),
        bound_broken=sum(e > r.error for e, (r, _) in zip(errors, unique, strict=True)),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--arbitrary", type=int, default=100, help="samples of whole-share cells")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--weights", type=Path, default=None)
    parser.add_argument("--only", default="", help='such as "lenet" or "whole share"')
    options = parser.parse_args()
    torch.set_num_threads(1)
    shelf = Shelf(options.data, options.weights)
    console = Console(width=160)
    console.print(
        "Labels recovered; every sample counted, no truth used to find or judge an answer"
    )
    console.print(_line(COLUMNS))
    for cell in cells():
        if options.only in f"{cell.title}, {cell.share} share":
            console.print(_line(_row(cell, shelf, options.samples, options.arbitrary)))


def _line(row: Sequence[str]) -> str:
    return "  ".join(f"{text:<{width}}" for text, width in zip(row, WIDTHS, strict=False))


def _row(cell: Cell, shelf: Shelf, samples: int, arbitrary: int) -> list[str]:
    network = NETWORKS[cell.network]
    start = [cell.title, type(cell.augmentation).__name__, cell.share]
    if lacking := network.lacking(shelf):
        return [*start, f"not run: needs {lacking}"]
    few = cell.whole_share and network is not NETWORKS["alexnet"]
    count = arbitrary if few or cell.unknown_scale or cell.family is None else samples
    score = measure(cell, network, shelf, count)
    tally = score.statuses
    return [
        *start, f"{score.exact} of {count}", str(tally[sl.Status.AMBIGUOUS]),
        str(tally[sl.Status.ZERO_GRADIENT]),
        str(tally[sl.Status.NO_SOLUTION] + tally[sl.Status.NOT_SINGLE]), str(score.wrong),
        str(score.missed), f"{score.mean_error:.1e}", f"{score.worst_error:.1e}",
        f"{score.worst_feature:.1e}", str(score.bound_broken),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
