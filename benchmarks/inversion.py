"""Part two, inputs: the time per image against the paper's optimisers and procedure.

It prints ratios and no seconds: `python -m benchmarks.inversion`.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import softleak as sl
from benchmarks.classic import PUBLISHED_SMOOTHING, one_index
from benchmarks.goals import Goal, goals_table, ratio
from benchmarks.optimisers import by_cosine, l2, match
from benchmarks.timing import Contestant, race, timed
from softleak.audit.metrics import psnr
from softleak.labels.evidence.relation import Relation
from softleak.paper import data, models

OURS, CLASSIC, CLASSIC_IMAGE, OURS_IMAGE = "softleak", "classic", "classic, image", "ours, image"
ROUNDS = 3
GIB = 2**30


@dataclass(frozen=True, eq=False)
class Case:
    """A model and what its clients sent.

    Attributes:
        model: the classifier.
        shares: what each client sent.
        samples: the truth behind each share.
        head: the last linear layer.
        evidence: the relations that the layers offer.
        chain: the layers, prepared for inversion.
    """

    model: nn.Module
    shares: Sequence[sl.GradientShare]
    samples: Sequence[data.Sample]
    head: sl.Head
    evidence: Sequence[Relation]
    chain: sl.Chain

    @classmethod
    def of(cls, model: nn.Module, size: int = 32) -> Case:
        """Return the case of a model whose images have this size in pixels."""
        images, shape = data.embedded(), (3, size, size)
        resize = None if size == 32 else size
        drawn = list(data.samples(images, data.Smoothing(), ROUNDS, 1, data.CIFAR10_NORM, resize))
        head = sl.Head.of(model.eval())
        return cls(
            model, [sl.capture(model, s.x, s.y) for s in drawn], drawn, head,
            sl.probe(model, shape, head=head), sl.Chain.of(model, head, shape),
        )  # fmt: skip

    def recovery(self, i: int) -> sl.Recovery:
        """Recover the label of one share."""
        return sl.recover_label(self.model, self.shares[i], evidence=self.evidence, head=self.head)

    def ours(self, i: int) -> Tensor:
        """Recover the label, the feature and then the input of one share."""
        return self.image(i, self.recovery(i))

    def image(self, i: int, recovery: sl.Recovery) -> Tensor:
        """Invert the input of one share whose label was recovered."""
        return sl.invert(
            self.model, self.shares[i], recovery, chain=self.chain, pixel=data.CIFAR10_NORM.scale
        ).input


def run(console: Console) -> list[Goal]:
    """Time everything, print the tables and return the goals."""
    torch.manual_seed(0)
    goals: list[Goal] = []
    lenets = (
        ("LeNet, uniform", models.uniform_(models.lenet()), 1e-2),
        ("LeNet, trained", models.trained_lenet(), 1e-3),
    )
    for name, model, smooth in lenets:
        goals += _lenet(console, name, Case.of(model), smooth)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    goals.append(Goal("peak memory so far / 1 GiB", used, 2, at_least=False))
    for size in (32, 64):
        goals += _fcn(console, Case.of(models.fcn4(10, size), size), size)
    return goals


def _lenet(console: Console, name: str, case: Case, smooth: float) -> list[Goal]:
    """Time whole runs on one image, ours before and after each optimiser's."""
    case.ours(0)  # set-up per model
    found, label = case.ours(0), _label(case)
    table = Table("", "time / softleak's", "PSNR", title=f"Images, {name}, one thread")
    table.add_row(OURS, "1", f"{_quality(case, 0, found):.0f} dB")
    goals = []
    for setting, bound in ((l2(smooth), 15), (by_cosine(smooth), 30)):
        before, _ = timed(lambda: case.ours(0))
        whole, image = timed(lambda s=setting: match(case.model, case.shares[0], label, s))  # type: ignore[misc]
        after, _ = timed(lambda: case.ours(0))
        times = whole / ((before + after) / 2)
        table.add_row(setting.name, ratio(times), f"{_quality(case, 0, image):.0f} dB")
        goals.append(Goal(f"{name}: {setting.name} / softleak", times, bound))
    console.print(table)
    return goals


def _label(case: Case) -> Tensor:
    """Return the recovered label of the first share."""
    label = case.recovery(0).label
    if label is None:
        raise RuntimeError("the label of the first sample was not recovered")
    return label


def _fcn(console: Console, case: Case, size: int) -> list[Goal]:
    """Time the procedure of §4.2: Algorithm 1 for the label, one index per layer for the image."""
    known = [case.recovery(i) for i in range(ROUNDS)]

    def classic(i: int) -> Tensor:
        PUBLISHED_SMOOTHING.lbfgs(case.model, case.shares[i], head=case.head)
        return one_index(case.chain, case.shares[i], known[i])

    runs: dict[str, Callable[[int], Tensor]] = {
        OURS: case.ours,
        CLASSIC: classic,
        OURS_IMAGE: lambda i: case.image(i, known[i]),
        CLASSIC_IMAGE: lambda i: one_index(case.chain, case.shares[i], known[i]),
    }
    results = race([Contestant(name, each, budget=30) for name, each in runs.items()], ROUNDS)
    table = Table("", "time / softleak's", "PSNR", title=f"Images, FCN-4 {size}×{size}")
    for name in runs:
        table.add_row(
            name,
            ratio(results[name].over(results[OURS])),
            f"{_quality(case, 0, results[name].answers[0]):.0f} dB",
        )
    console.print(table)
    times = results[OURS].over(results[CLASSIC])
    return [Goal(f"FCN-4 {size}×{size}: softleak / classic", times, 0.5, at_least=False)]


def _quality(case: Case, i: int, found: Tensor) -> float:
    """Return the PSNR of a recovered input in dB."""
    truth = data.CIFAR10_NORM.invert(case.samples[i].x.double())
    return psnr(data.CIFAR10_NORM.invert(found.double().view_as(truth)), truth)


if __name__ == "__main__":
    torch.set_num_threads(1)
    screen = Console()
    screen.print(goals_table(run(screen)))
