"""This module looks for a second solution by solving again from places far from the first.

The Jacobian excludes other solutions nearby, and look-alikes exclude those that can be named. A
network may have others: if its first layer is frozen, two patches may be exchanged behind it, and
if inputs enter through a sine, each entry has many values that give the same. If there are such
solutions, a walk that begins far from the first one ends at another of them as easily.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from softleak.matching.gauss_newton.batch_function import BatchFunction
from softleak.matching.gauss_newton.newton_model import NewtonModel
from softleak.matching.gauss_newton.newton_solver import NewtonRun, NewtonSolution
from softleak.matching.gauss_newton.share_equations import BatchKnowledge
from softleak.matching.stopping import Stopping
from softleak.share import GradientShare


@dataclass(frozen=True)
class SecondLook:
    """These settings say from where and for how long a second solution is looked for.

    Attributes:
        looks: the number of starts.
        looks_in_part: their number if the share lacks parameters, or if the network has constants
            of its own. Whatever a frozen layer hides can be exchanged behind it.
        small: inputs of at most so many unknowns are looked at from every start, which is cheap.
        least: each walk takes as many steps as the first solution took, but so many at least.
        most: and so many at most.
        most_of_small: the steps of each walk for small inputs.
        apart: two solutions differ if an entry does by more than so many of its predicted errors.
        seed: the seed of the starts.
    """

    looks: int = 2
    looks_in_part: int = 4
    small: int = 256
    least: int = 12
    most: int = 25
    most_of_small: int = 60
    apart: float = 1e3
    seed: int = 0

    def __call__(
        self,
        run: NewtonRun,
        model: NewtonModel,
        share: GradientShare,
        known: BatchKnowledge,
        found: NewtonSolution,
    ) -> str:
        """Return that another solution was found from far away, or nothing if none was.

        Args:
            run: how the first solution was found.
            model: the network.
            share: what was sent.
            known: what is known of the samples.
            found: the first solution.
        """
        if (error := found.certificate.error) is None:
            return ""
        small = model.exact.unknowns <= self.small
        steps = self.most_of_small if small else min(max(found.steps, self.least), self.most)
        descent = replace(run.descent, steps=steps, hopeless=run.descent.precise)
        brief = replace(run, descent=descent, escape=None)
        looks = self.looks if _whole(model.exact) else self.looks_in_part
        for start in self.starts(found.inputs, None if small else looks):
            other = brief(model, share, known, start, Stopping(steps))
            if other.certificate.explained and self.differs(other.inputs, found.inputs, error):
                return "solved for again from elsewhere, other inputs explain the share as well"
        return ""

    def starts(self, x: Tensor, count: int | None) -> Iterator[Tensor]:
        """Yield starts (B, …) that have nothing of inputs (B, …) but how bright they are, or less.

        Args:
            x: the inputs that were found.
            count: how many of the starts are wanted; None means all.
        """
        generator = torch.Generator().manual_seed(self.seed)
        flat = x.flatten(1)
        mean, spread = float(flat.mean()), max(float(flat.std(correction=0)), 1e-6)
        order = torch.randperm(flat.shape[1], generator=generator)
        shuffled = flat[:, order.to(x.device)].view_as(x)
        noise = torch.randn(x.shape, generator=generator, dtype=torch.double).to(x)
        halves = torch.ones_like(flat)
        halves[:, flat.shape[1] // 2 :] = -1
        every = (
            shuffled, 2 * mean - x, -shuffled, mean + 2 * spread * noise,
            noise, 4 * noise, shuffled + halves.view_as(x), shuffled - halves.view_as(x),
        )  # fmt: skip
        yield from every[:count]

    def differs(self, one: Tensor, other: Tensor, error: Tensor) -> bool:
        """Return whether two solutions (B, …) are further apart than errors explain.

        The order of the samples of a batch does not count.
        """
        limit = self.apart * error
        nearest = [min(float(((own - each).abs() / limit).max()) for each in other) for own in one]
        return max(nearest) > 1


def _whole(function: BatchFunction) -> bool:
    """Return whether everything that acts on an input has sent its gradient.

    Constants of the network send none. Those of BatchNorm are not counted: they act on channels.
    """
    modules = [
        module for module in function.model.model.modules()
        if not isinstance(module, nn.modules.batchnorm._BatchNorm)
    ]  # fmt: skip
    constants = (
        buffer for module in modules for buffer in module.buffers(recurse=False)
        if buffer.is_floating_point()
    )  # fmt: skip
    return len(function.names) == len(function.model.parameters) and not any(
        True for _ in constants
    )
