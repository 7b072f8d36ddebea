"""Updates through torch's own optimisers, and how the auditor reads the two checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.adversary.client import OptimiserOf, State
from softleak import GradientShare

Reader = Callable[[State, State], GradientShare]
RATE = 1e-2


@dataclass(frozen=True)
class Update:
    """An optimiser, and how its update is read.

    ``remembers``: whether it holds the momentum of another sample. ``undeclared``: whether it was
    read with a wrong learning rate or sign; several steps that are read as one are so too.
    ``clean``: whether it was one plain step, read right.
    ``negative``: whether it was read with the wrong sign.
    """

    name: str
    optimiser: OptimiserOf
    read: Reader
    steps: int = 1
    remembers: bool = False
    undeclared: bool = False
    clean: bool = False
    negative: bool = False


def sgd(
    parameters: Sequence[nn.Parameter], lr: float, momentum: float = 0.0, decay: float = 0.0
) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr, momentum, weight_decay=decay)


def adam(parameters: Sequence[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr)


def known_rate(before: State, after: State, lr: float) -> GradientShare:
    return GradientShare.from_update(before, after, lr=lr)


def unknown_rate(before: State, after: State) -> GradientShare:
    return GradientShare.from_update(before, after)


def difference(before: State, after: State) -> dict[str, Tensor]:
    return {n: after[n] - before[n] for n in before if before[n].is_floating_point()}


def as_gradient(before: State, after: State) -> GradientShare:
    """A difference of weights taken for a gradient: a wrong sign and a wrong scale."""
    return GradientShare(difference(before, after))


def as_delta(before: State, after: State, lr: float | None) -> GradientShare:
    return GradientShare.from_delta(difference(before, after), lr=lr)


def _plain(lr: float) -> Update:
    return Update(f"SGD, {lr:.0e}", partial(sgd, lr=lr), partial(known_rate, lr=lr), clean=True)


STEP = partial(sgd, lr=RATE)
HEAVY = partial(sgd, lr=RATE, momentum=0.9)
READ = partial(known_rate, lr=RATE)
UPDATES = (
    *(_plain(10.0**-power) for power in range(1, 8)),
    Update("SGD, rate not told", STEP, unknown_rate, clean=True),
    Update("SGD, 1e-05, rate not told", partial(sgd, lr=1e-5), unknown_rate, clean=True),
    Update("SGD, delta", STEP, partial(as_delta, lr=RATE)),
    Update("SGD, delta, rate not told", STEP, partial(as_delta, lr=None)),
    Update("SGD, decay 5e-4", partial(sgd, lr=RATE, decay=5e-4), READ),
    Update("SGD, second step with momentum", HEAVY, READ, remembers=True),
    Update("SGD, two steps with momentum on one sample", HEAVY, READ, 2),
    Update("SGD, three steps on one sample", STEP, READ, 3),
    Update("Adam", partial(adam, lr=1e-3), partial(known_rate, lr=1e-3)),
    Update("SGD, rate told twice too large", STEP, partial(known_rate, lr=2 * RATE),
           undeclared=True),
    Update("SGD, rate told twice too small", STEP, partial(known_rate, lr=RATE / 2),
           undeclared=True),
    Update("SGD, delta taken for a gradient", STEP, as_gradient, undeclared=True,
           negative=True),
)  # fmt: skip
