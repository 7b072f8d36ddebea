"""Count how often the 90 % intervals hold, for each kind of label, behind Gaussian noise alone.

python -m benchmarks.calibration_by_label [--samples 10] [--levels 0.01 0.1 1] [--only arbitrary]

Nobody says which family a label is of, how much noise there is, or that there is any.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import softleak as sl
from benchmarks.adversary.labels import LABELS
from benchmarks.calibration import INTERVAL_SLACK
from softleak.audit.weakest import root_mean_square
from softleak.defenses import GaussianNoise
from softleak.labels.evidence.relation import Relation
from softleak.paper import data, models

KINDS = {
    "one-hot": "one-hot",
    "smoothed": "smoothed by 0.1",
    "mixed": "mix of two",
    "Dirichlet": "arbitrary",
}
SIZE = 32
SEED = 7  # of images, labels and noise
EDGE = 1e-12  # entries nearer to 0 or 1 are called 0 or 1


@dataclass(frozen=True)
class Held:
    """What one recovery said of one label: each field is a list of whether it is so.

    Attributes:
        edge: for the entries that are 0 or 1, whether they lie in their intervals.
        inner: the same for the other entries.
        bounded: whether the L1 error of the label is within its bound, which is said with 90 %.
        answered: whether an interval was given at all.
    """

    edge: tuple[bool, ...] = ()
    inner: tuple[bool, ...] = ()
    bounded: tuple[bool, ...] = ()
    answered: tuple[bool, ...] = (False,)


def held(recovery: sl.Recovery, y: Tensor) -> Held:
    """Compare a recovery with the true label (C,)."""
    if recovery.label is None or recovery.interval is None:
        return Held()
    low, high = recovery.interval
    inside = (low - INTERVAL_SLACK <= y) & (y <= high + INTERVAL_SLACK)
    edge = (y < EDGE) | (y > 1 - EDGE)
    within = float((recovery.label - y).abs().sum()) <= recovery.error
    return Held(tuple(inside[edge].tolist()), tuple(inside[~edge].tolist()), (within,), (True,))


def networks() -> Iterator[nn.Module]:
    """Yield a trained network and two fresh ones, the same in every run."""
    torch.manual_seed(SEED)
    yield models.trained_lenet()
    yield models.mlp(3 * SIZE**2, (256,)).eval()
    yield models.resnet20().eval()


@dataclass(frozen=True, eq=False)
class Asked:
    """A network whose clients send noisy shares, with what is asked of all of them."""

    model: nn.Module
    head: sl.Head
    relations: tuple[Relation, ...]
    levels: Sequence[float]  # of the noise, in units of the root mean square of the share

    def held(self, kind: str, samples: int) -> Iterator[tuple[bool, Held]]:
        """Yield for every share and question whether other layers helped, and what held."""
        source = torch.Generator().manual_seed(SEED)
        drawn = data.samples(data.embedded(), data.Hard(), samples, SEED, data.CIFAR10_NORM)
        for number, sample in enumerate(drawn):
            z = self.model(sample.x[None])[0].detach().double()
            y = LABELS[kind](z, source)
            share = sl.capture(self.model, sample.x, y)
            for level in self.levels:
                noisy = GaussianNoise(level * root_mean_square(share), number)(share)
                for helped in (False, True):
                    found = sl.recover_label(
                        self.model, noisy, head=self.head,
                        evidence=self.relations if helped else False,
                    )  # fmt: skip
                    yield helped, held(found, y)


def share_of(answers: Sequence[bool]) -> str:
    """Return how many of them are so, in words for a table."""
    return f"{sum(answers) / len(answers):.1%} of {len(answers)}" if answers else "none"


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration_by_label")
    parser.add_argument("--samples", type=int, default=10, help="images per network")
    parser.add_argument("--levels", type=float, nargs="+", default=(0.01, 0.1, 1.0))
    parser.add_argument("--only", choices=list(KINDS.values()), help="one kind of label")
    given = parser.parse_args()
    asked = []
    for model in networks():
        head = sl.Head.of(model)
        relations = tuple(sl.probe(model, (3, SIZE, SIZE), head=head))
        asked.append(Asked(model, head, relations, given.levels))
    print(
        "| label | read from | given an interval | entries of 0 or 1 inside | other entries inside "
        "| labels within `error` |\n|---|---|---|---|---|---|"
    )
    for kind, words in KINDS.items():
        if given.only not in (None, words):
            continue
        found = [one for each in asked for one in each.held(kind, given.samples)]
        for helped, source in ((False, "the head alone"), (True, "the whole share")):
            some = [one for with_help, one in found if with_help == helped]
            columns = ("answered", "edge", "inner", "bounded")
            lists = ([so for one in some for so in getattr(one, name)] for name in columns)
            print(f"| {words} | {source} | {' | '.join(map(share_of, lists))} |", flush=True)


if __name__ == "__main__":
    main()
