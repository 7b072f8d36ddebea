"""L-BFGS, many problems at once, each with a line search of its own.

An evaluation is a trial of every problem still going on: one accepts and turns to its next
direction while another shortens or lengthens its step. The search is for the weak Wolfe
conditions by bisection (Lewis and Overton), which also holds where total variation has kinks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from softleak.matching.history import History
from softleak.matching.minimum import STATUSES, Minimum
from softleak.matching.problems import Problems
from softleak.matching.results import MatchStatus
from softleak.matching.watch import Watch

ENOUGH, FLAT = 1e-4, 0.9  # of the slope: what a step gains at least, and what may be left of it
TRIALS = 25  # along one direction
GOING_ON = -1
NARROW = 0.1  # of a bracket: how near its ends interpolation may go


@dataclass(eq=False)
class _State:
    """Row by row: where a problem is, and its search along one direction."""

    problem: Tensor  # which one it is
    x: Tensor
    loss: Tensor
    slope: Tensor
    direction: Tensor
    down: Tensor  # slope · direction
    step: Tensor
    low: Tensor
    high: Tensor
    trials: Tensor
    marked: Tensor  # the loss some evaluations ago
    ending: Tensor

    def select(self, rows: Tensor) -> _State:
        return _State(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True)
class LBFGS:
    """``steps`` of ``inner`` evaluations, the paper's 300 of 20, all of them spent on trials."""

    lr: float = 1.0
    steps: int = 300
    inner: int = 20
    history: int = 20
    first: float = 0.0
    last: float = 1.0
    patience: int = 200  # evaluations in which the loss must fall …
    progress: float = 1e-4  # … by this part of itself

    @property
    def evaluations(self) -> int:
        return round(self.steps * self.inner * (self.last - self.first))

    @property
    def vectors(self) -> int:
        return 2 * self.history + 8

    def part(self, first: float, last: float) -> LBFGS:
        return replace(self, first=first, last=last)

    def minimise(self, problems: Problems, start: Tensor, watch: Watch) -> Minimum:
        """Finished problems leave the batch as soon as they are half of it."""
        evaluate = problems.evaluator()
        loss, slope = evaluate(start)
        state = self._begin(start, loss, slope)
        history = History.empty(start, self.history)
        done = Minimum(
            start.clone(), loss.clone(), torch.ones_like(state.problem), state.ending.clone()
        )
        watch.tell(len(start), loss, len(start))
        for count in range(1, self.evaluations):
            going = state.ending == GOING_ON
            if watch.over or not bool(going.any()):
                break
            if 2 * int(going.sum()) <= len(going):
                _store(done, state)
                rows = going.nonzero()[:, 0]
                state, history = state.select(rows), history.select(rows)
                evaluate = problems.select(state.problem).evaluator()
            done.evaluations[state.problem] += state.ending == GOING_ON
            self._trial(state, history, *evaluate(state.x + state.step[:, None] * state.direction))
            if count % self.patience == 0:
                self._settle(state)
            watch.tell(len(state.x), state.loss, int((state.ending == GOING_ON).sum()))
        _store(done, state)
        ended = STATUSES.index(watch.ended)
        done.ending[done.ending == GOING_ON] = ended
        return done

    def _begin(self, x: Tensor, loss: Tensor, slope: Tensor) -> _State:
        sound = loss.isfinite() & slope.isfinite().all(1)
        nothing, endless = torch.zeros_like(loss), torch.full_like(loss, torch.inf)
        state = _State(
            torch.arange(len(x), device=x.device), x.clone(), loss, slope, -slope,
            down=nothing, step=nothing, low=nothing, high=endless, trials=nothing, marked=endless,
            ending=torch.where(sound, GOING_ON, STATUSES.index(MatchStatus.DIVERGED)),
        )  # fmt: skip
        self._head_for(state, torch.ones_like(sound), -slope, fresh=torch.ones_like(sound))
        return state

    def _head_for(self, state: _State, rows: Tensor, direction: Tensor, fresh: Tensor) -> None:
        """Search along new directions; a ``fresh`` one, of unknown length, begins cautiously."""
        state.direction = torch.where(rows[:, None], direction, state.direction)
        down = (state.slope * state.direction).sum(1)
        state.down = torch.where(rows, down, state.down)
        cautious = self.lr / state.direction.norm(dim=1).clamp_min(1.0)
        step = torch.where(fresh, cautious, self.lr)
        state.step = torch.where(rows, step, state.step)
        state.low = torch.where(rows, 0.0, state.low)
        state.high = torch.where(rows, torch.inf, state.high)
        state.trials = torch.where(rows, 0.0, state.trials)

    def _trial(self, state: _State, history: History, loss: Tensor, slope: Tensor) -> None:
        """Judge a trial of every row, and choose its next."""
        going = state.ending == GOING_ON
        sound = loss.isfinite() & slope.isfinite().all(1)
        gained = loss <= state.loss + ENOUGH * state.step * state.down
        gained = gained & sound & (loss < state.loss)
        flat = (slope * state.direction).sum(1) >= FLAT * state.down
        state.trials = state.trials + 1
        tired = state.trials >= TRIALS
        taken = going & gained & (flat | tired)
        lost = going & ~gained & tired
        moved = state.step[:, None] * state.direction
        self._narrow(state, gained, sound, loss)
        history.remember(taken, moved, slope - state.slope)
        state.x = torch.where(taken[:, None], state.x + moved, state.x)
        state.loss = torch.where(taken, loss, state.loss)
        state.slope = torch.where(taken[:, None], slope, state.slope)
        self._turn(state, history, taken, lost)

    def _narrow(self, state: _State, gained: Tensor, sound: Tensor, loss: Tensor) -> None:
        """The next step: within the bracket, or twice as long while there is none."""
        step = state.step
        state.high = torch.where(gained, state.high, step)
        state.low = torch.where(gained, step, state.low)
        width = state.high - state.low
        # A parabola through the start, its slope and the trial; its lowest point if that is inside.
        bent = loss - state.loss - step * state.down
        lowest = -state.down * step.square() / (2 * bent)
        inside = torch.where(sound & (state.low == 0) & lowest.isfinite(), lowest, step / 2)
        inside = inside.maximum(state.low + NARROW * width).minimum(state.high - NARROW * width)
        middle = torch.where(gained, state.low + width / 2, inside)
        state.step = torch.where(state.high.isfinite(), middle, 2 * step)

    def _turn(self, state: _State, history: History, taken: Tensor, lost: Tensor) -> None:
        """New directions where a step was taken; where none was found, the steepest, or the end."""
        if not bool((taken | lost).any()):
            return
        steepest = history.bare
        state.ending[lost & steepest] = STATUSES.index(MatchStatus.CONVERGED)
        history.forget(lost)
        direction = history.step(state.slope)
        uphill = (direction * state.slope).sum(1) >= 0
        history.forget(taken & uphill)
        direction = torch.where(uphill[:, None], -state.slope, direction)
        fresh = history.bare
        self._head_for(state, taken | lost, direction, fresh)
        still = taken & (state.slope.abs().amax(1) == 0)
        state.ending[still] = STATUSES.index(MatchStatus.CONVERGED)

    def _settle(self, state: _State) -> None:
        """Leave those whose loss has hardly fallen since it was last looked at."""
        settled = state.marked - state.loss < self.progress * state.loss
        state.ending[settled & (state.ending == GOING_ON)] = STATUSES.index(MatchStatus.CONVERGED)
        state.marked = state.loss.clone()


def _store(done: Minimum, state: _State) -> None:
    """Write rows back to where their problems are."""
    done.unknowns[state.problem] = state.x
    done.loss[state.problem] = state.loss
    done.ending[state.problem] = state.ending
