"""This module holds a line search for many problems at once, each with a bracket of its own.

The search is for the weak Wolfe conditions by bisection (Lewis and Overton 2013, Algorithm 2.6),
which also holds where total variation has kinks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

GOING_ON = -1  # in place of an ending


@dataclass(eq=False)
class Descent:
    """Where each of P problems is, and its search along one direction.

    Attributes:
        problem: which problem each row belongs to (P,).
        x: the iterates (P, n).
        loss: their losses (P,).
        slope: the gradients of the losses (P, n).
        direction: the directions of the searches (P, n).
        down: ``slope · direction``, which is negative (P,).
        step: the step lengths to be tried next (P,).
        low: the longest step known to be short enough (P,).
        high: the shortest step known to be too long, infinite if there is none (P,).
        trials: how many steps were tried along the direction (P,).
        marked: the loss when progress was last looked at (P,).
        ending: how the problem ended, or ``GOING_ON`` (P,).
    """

    problem: Tensor
    x: Tensor
    loss: Tensor
    slope: Tensor
    direction: Tensor
    down: Tensor
    step: Tensor
    low: Tensor
    high: Tensor
    trials: Tensor
    marked: Tensor
    ending: Tensor

    @property
    def going(self) -> Tensor:
        """Whether each problem is still going on, (P,)."""
        return self.ending == GOING_ON

    def select(self, rows: Tensor) -> Descent:
        """Return some of the rows."""
        return Descent(*(getattr(self, field.name)[rows] for field in fields(self)))

    def head_for(self, rows: Tensor, direction: Tensor, step: Tensor) -> None:
        """Begin a search along new directions (P, n) in the rows of a mask (P,)."""
        self.direction = torch.where(rows[:, None], direction, self.direction)
        down = (self.slope * self.direction).sum(1)
        self.down = torch.where(rows, down, self.down)
        self.step = torch.where(rows, step, self.step)
        self.low = torch.where(rows, 0.0, self.low)
        self.high = torch.where(rows, torch.inf, self.high)
        self.trials = torch.where(rows, 0.0, self.trials)

    def move(self, rows: Tensor, moved: Tensor, loss: Tensor, slope: Tensor) -> None:
        """Take the steps ``moved`` (P, n) in the rows of a mask (P,)."""
        self.x = torch.where(rows[:, None], self.x + moved, self.x)
        self.loss = torch.where(rows, loss, self.loss)
        self.slope = torch.where(rows[:, None], slope, self.slope)


@dataclass(frozen=True)
class WolfeSearch:
    """This is the settings of the search.

    Attributes:
        decrease: the part of the decrease the slope promises that a step gains at least.
        slope_left: the part of the slope that may be left after a step.
        trials: how many steps are tried along one direction.
        margin: how near the ends of a bracket interpolation may go, as a part of its width.
    """

    decrease: float = 1e-4
    slope_left: float = 0.9
    trials: int = 25
    margin: float = 0.1

    def judge(self, state: Descent, loss: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Judge a trial of every row, and choose the next step.

        Args:
            state: the searches, which are updated.
            loss: the losses (P,) at ``x + step · direction``.
            slope: their gradients (P, n).

        Returns:
            Masks (P,) of the rows whose step is taken, and of those where none was found.
        """
        going, sound = state.going, loss.isfinite() & slope.isfinite().all(1)
        gained = loss <= state.loss + self.decrease * state.step * state.down
        gained = gained & sound & (loss < state.loss)
        flat = (slope * state.direction).sum(1) >= self.slope_left * state.down
        state.trials = state.trials + 1
        tired = state.trials >= self.trials
        self._narrow(state, gained, sound, loss)
        return going & gained & (flat | tired), going & ~gained & tired

    def _narrow(self, state: Descent, gained: Tensor, sound: Tensor, loss: Tensor) -> None:
        """Choose the next step: within the bracket, or twice as long while there is none."""
        step = state.step
        state.high = torch.where(gained, state.high, step)
        state.low = torch.where(gained, step, state.low)
        width = state.high - state.low
        # A parabola through the start, its slope and the trial; its lowest point if that is inside.
        bent = loss - state.loss - step * state.down
        lowest = -state.down * step.square() / (2 * bent)
        inside = torch.where(sound & (state.low == 0) & lowest.isfinite(), lowest, step / 2)
        margin = self.margin * width
        inside = inside.maximum(state.low + margin).minimum(state.high - margin)
        middle = torch.where(gained, state.low + width / 2, inside)
        state.step = torch.where(state.high.isfinite(), middle, 2 * step)
