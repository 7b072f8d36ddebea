"""Measure how often, how exactly and how honestly labels are recovered, cell by cell.

    python -m benchmarks.accuracy --samples 1000 --data DIR [--weights DIR] [--only lenet]

``DIR`` holds data packs; without it the embedded images are used. Cells whose data or trained
weights are missing are named and left out.
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
from softleak.audit.metrics import distance_to_set, label_error
from softleak.core.knowledge import Knowledge
from softleak.core.share import Scale
from softleak.labels.recover import recover
from softleak.paper import data
from softleak.paper.networks import (
    MIXED,
    NETWORKS,
    ONE_HOT,
    SAMPLE_SEED,
    SMOOTHED,
    AttackedNetwork,
    AugmentationKind,
    Network,
    Shelf,
)
from softleak.paper.tables import LABEL_TOLERANCE

COLUMNS = (
    "network", "labels", "share", "exact", "ambiguous", "zero", "none", "wrong", "missed",
    "mean L1", "worst L1", "feature", "broken",
)  # fmt: skip
WIDTHS = (38, 9, 5, 12, 9, 4, 4, 5, 6, 7, 8, 8, 6)
STRICT_TOLERANCE = 1e-11  # with float64 gradients, UNIQUE may be asked to be this exact


@dataclass(frozen=True)
class Cell:
    """A network, a kind of label, and what the attacker uses.

    Attributes:
        network: the name of the network in ``NETWORKS``.
        augmentation: how clients make inputs and labels.
        family: the family of labels that the attacker assumes; None for any label.
        whole_share: whether layers before the head are read as evidence.
        dtype: the precision of the gradients.
        unknown_scale: whether each share is multiplied by a factor that the attacker does not know.
        training: whether the network is in train mode.
        tolerance: the L1 distance below which an answer counts as the true label.
    """

    network: str
    augmentation: data.Augmentation
    family: sl.Family | None
    whole_share: bool = False
    dtype: torch.dtype = torch.float32
    unknown_scale: bool = False
    training: bool = False
    tolerance: float = LABEL_TOLERANCE

    @property
    def share(self) -> str:
        """The part of the share that the attacker reads."""
        return "whole" if self.whole_share else "head"

    @property
    def title(self) -> str:
        """The network and its setting as text."""
        marks = [
            "train mode" if self.training else "",
            "float64" if self.dtype == torch.float64 else "",
            "unknown scale" if self.unknown_scale else "",
            f"to {self.tolerance:.0e}" if self.tolerance < LABEL_TOLERANCE else "",
        ]
        return ", ".join([self.network, *filter(None, marks)])


@dataclass(frozen=True)
class Score:
    """What became of the samples of a cell.

    Attributes:
        statuses: the number of answers with each status.
        wrong: the number of UNIQUE answers that are further from the truth than the tolerance.
        missed: the number of AMBIGUOUS answers whose set does not hold the truth.
        mean_error: the mean L1 error of UNIQUE answers.
        worst_error: the largest L1 error of UNIQUE answers.
        worst_feature: the largest relative error of a feature.
        bound_broken: the number of UNIQUE answers whose error exceeds the predicted bound.
    """

    statuses: Counter[sl.Status]
    wrong: int
    missed: int
    mean_error: float
    worst_error: float
    worst_feature: float
    bound_broken: int

    @property
    def exact(self) -> int:
        """The number of samples whose only answer is the right label."""
        return self.statuses[sl.Status.UNIQUE] - self.wrong


KINDS: Sequence[AugmentationKind] = (SMOOTHED, MIXED, ONE_HOT)
HEAD_ONLY = (
    "lenet", "lenet trained", "resnet18", "resnet18 trained", "resnet18_cifar",
    "resnet18_cifar trained", "resnet20 converged", "resnet56 converged", "alexnet",
)  # fmt: skip
WHOLE_SHARE = (
    "lenet", "lenet default", "alexnet", "vgg", "resnet18", "resnet18_cifar", "resnet50 at 224",
    "resnet50 at 224, uniform", "vit", "mlp ReLU", "mlp LeakyReLU", "mlp Sigmoid", "mlp Tanh",
)  # fmt: skip


def cells() -> Iterator[Cell]:
    """Yield every cell, in the order of the table."""
    for name in HEAD_ONLY:
        for kind in KINDS:
            cell = Cell(name, kind.augmentation, kind.family)
            yield cell
            if not name.startswith("alexnet"):
                yield replace(cell, dtype=torch.float64)
            if name.endswith("converged") and kind == SMOOTHED:
                yield replace(cell, dtype=torch.float64, tolerance=STRICT_TOLERANCE)
    for kind in KINDS:
        yield Cell("alexnet", kind.augmentation, kind.family, whole_share=True)
    for name in WHOLE_SHARE:
        arbitrary = Cell(name, data.Dirichlet(), None, whole_share=True)
        yield arbitrary
        yield replace(arbitrary, unknown_scale=True)
        for kind in KINDS:
            yield replace(
                arbitrary, augmentation=kind.augmentation, family=kind.family, unknown_scale=True
            )
    yield Cell("resnet18_cifar", data.Dirichlet(), None, whole_share=True, training=True)


def target_of(cell: Cell, network: Network, shelf: Shelf) -> AttackedNetwork:
    """Return the cell's network, prepared before any share arrives."""
    return AttackedNetwork.of(
        network, shelf, evidence=cell.whole_share, dtype=cell.dtype, training=cell.training
    )


def measure(
    cell: Cell, network: Network, shelf: Shelf, samples: int, seed: int = SAMPLE_SEED,
    target: AttackedNetwork | None = None,
) -> Score:  # fmt: skip
    """Draw samples and attack their gradients; compare with the labels only afterwards.

    Args:
        cell: what to attack, and how.
        network: the network of the cell.
        shelf: the data packs and weights.
        samples: the number of samples.
        seed: the seed of samples and factors.
        target: the prepared network, if it is there already.
    """
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
    scale: Scale = "unknown" if cell.unknown_scale else "known"
    known = Knowledge(cell.family, scale, tolerance=cell.tolerance)
    found = recover(target.subject, shares, known)
    return _score(found, truth, features, cell.tolerance)


def _keep(features: list[torch.Tensor]) -> Callable[[nn.Module, tuple[torch.Tensor], object], None]:
    """Return a hook that appends what enters the head, (I,) in float64."""
    return lambda _, inputs, __: features.append(inputs[0][0].detach().double())


def _score(
    found: Sequence[sl.Recovery], truth: Sequence[torch.Tensor], features: Sequence[torch.Tensor],
    tolerance: float,
) -> Score:  # fmt: skip
    """Return how the answers compare with the true labels and features."""
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
    """Measure every cell and print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100, help="samples per head-only cell")
    parser.add_argument("--arbitrary", type=int, default=100, help="samples per whole-share cell")
    parser.add_argument("--data", type=Path, default=None, help="the folder of data packs")
    parser.add_argument("--weights", type=Path, default=None, help="the folder of weights")
    parser.add_argument("--only", default="", help="run cells whose title contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shelf = Shelf(options.data, options.weights)
    console = Console(width=160)
    console.print("Recovered labels. Every sample counts; no attack sees the truth.")
    console.print(_line(COLUMNS))
    for cell in cells():
        if options.only in f"{cell.title}, {cell.share} share":
            console.print(_line(_row(cell, shelf, options.samples, options.arbitrary)))


def _line(row: Sequence[str]) -> str:
    """Return one line of the table."""
    return "  ".join(f"{text:<{width}}" for text, width in zip(row, WIDTHS, strict=False))


def _row(cell: Cell, shelf: Shelf, samples: int, arbitrary: int) -> list[str]:
    """Measure a cell, and return its row of the table."""
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
