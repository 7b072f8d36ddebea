"""This module holds L-BFGS for many problems at once, each with a line search of its own.

An evaluation is a trial of every problem that is still going on: one accepts its step and turns to
the next direction while another shortens or lengthens its step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from softleak.matching.history import History
from softleak.matching.line_search import GOING_ON, Descent, WolfeSearch
from softleak.matching.minimum import STATUSES, Minimum
from softleak.matching.problems import MatchingProblems
from softleak.matching.reconstruction import MatchStatus
from softleak.matching.stopping import Stopping

CONVERGED, DIVERGED = map(STATUSES.index, (MatchStatus.CONVERGED, MatchStatus.DIVERGED))


@dataclass(frozen=True)
class LBFGS:
    """This is L-BFGS with the paper's 300 steps of 20 evaluations, all of them spent on trials.

    Attributes:
        lr: the first step tried along a direction.
        steps: the number of the paper's outer steps.
        inner: the evaluations of one outer step.
        history: how many steps the estimate of the curvature remembers.
        first: the fraction of the evaluations at which this optimiser begins.
        last: the fraction at which it ends.
        patience: a problem ends if its loss falls too little in so many evaluations.
        progress: the part of the loss by which it must fall in that time.
        search: the settings of the line search.
    """

    lr: float = 1.0
    steps: int = 300
    inner: int = 20
    history: int = 20
    first: float = 0.0
    last: float = 1.0
    patience: int = 200
    progress: float = 1e-4
    search: WolfeSearch = field(default_factory=WolfeSearch)

    @property
    def evaluations(self) -> int:
        return round(self.steps * self.inner * (self.last - self.first))

    @property
    def vectors(self) -> int:
        return 2 * self.history + 8

    def part(self, first: float, last: float) -> LBFGS:
        return replace(self, first=first, last=last)

    def minimise(self, problems: MatchingProblems, start: Tensor, stopping: Stopping) -> Minimum:
        """Minimise; finished problems leave the batch as soon as they are half of it."""
        evaluate = problems.evaluator()
        loss, slope = evaluate(start)
        state = self._begin(start, loss, slope)
        history = History.empty(start, self.history)
        done = Minimum(
            start.clone(), loss.clone(), torch.ones_like(state.problem), state.ending.clone()
        )
        stopping.tell(len(start), loss, len(start))
        for count in range(1, self.evaluations):
            going = state.going
            if stopping.over or not bool(going.any()):
                break
            if 2 * int(going.sum()) <= len(going):
                _store(done, state)
                rows = going.nonzero()[:, 0]
                state, history = state.select(rows), history.select(rows)
                evaluate = problems.select(state.problem).evaluator()
            done.evaluations[state.problem] += state.going
            self._trial(state, history, *evaluate(state.x + state.step[:, None] * state.direction))
            if count % self.patience == 0:
                self._settle(state)
            stopping.tell(len(state.x), state.loss, int(state.going.sum()))
        _store(done, state)
        done.ending[done.ending == GOING_ON] = STATUSES.index(stopping.ended)
        return done

    def _begin(self, x: Tensor, loss: Tensor, slope: Tensor) -> Descent:
        """Return the searches from ``x`` (P, n) along the steepest descent."""
        sound = loss.isfinite() & slope.isfinite().all(1)
        nothing, endless = torch.zeros_like(loss), torch.full_like(loss, torch.inf)
        state = Descent(
            torch.arange(len(x), device=x.device), x.clone(), loss, slope, -slope,
            down=nothing, step=nothing, low=nothing, high=endless, trials=nothing, marked=endless,
            ending=torch.where(sound, GOING_ON, DIVERGED),
        )  # fmt: skip
        every = torch.ones_like(sound)
        state.head_for(every, -slope, self._first_step(-slope, fresh=every))
        return state

    def _first_step(self, direction: Tensor, fresh: Tensor) -> Tensor:
        """Return the first steps (P,) to try; shorter ones along ``fresh``, unscaled directions."""
        cautious = self.lr / direction.norm(dim=1).clamp_min(1.0)
        return torch.where(fresh, cautious, self.lr)

    def _trial(self, state: Descent, history: History, loss: Tensor, slope: Tensor) -> None:
        """Judge a trial of every row, take the steps that are good, and choose what is next."""
        moved = state.step[:, None] * state.direction
        taken, lost = self.search.judge(state, loss, slope)
        history.remember(taken, moved, slope - state.slope)
        state.move(taken, moved, loss, slope)
        self._turn(state, history, taken, lost)

    def _turn(self, state: Descent, history: History, taken: Tensor, lost: Tensor) -> None:
        """Choose new directions.

        Where a step was taken, the direction is that of L-BFGS. Where none was found, it is the
        steepest descent; if that was the direction already, the problem has converged.
        """
        if not bool((taken | lost).any()):
            return
        steepest = history.bare
        state.ending[lost & steepest] = CONVERGED
        history.forget(lost)
        direction = history.step(state.slope)
        uphill = (direction * state.slope).sum(1) >= 0
        history.forget(taken & uphill)
        direction = torch.where(uphill[:, None], -state.slope, direction)
        turning = taken | lost
        state.head_for(turning, direction, self._first_step(direction, fresh=history.bare))
        still = taken & (state.slope.abs().amax(1) == 0)
        state.ending[still] = CONVERGED

    def _settle(self, state: Descent) -> None:
        """End the problems whose loss has hardly fallen since it was last looked at."""
        settled = state.marked - state.loss < self.progress * state.loss
        state.ending[settled & state.going] = CONVERGED
        state.marked = state.loss.clone()


def _store(done: Minimum, state: Descent) -> None:
    """Write the rows of a search back to their problems."""
    done.unknowns[state.problem] = state.x
    done.loss[state.problem] = state.loss
    done.ending[state.problem] = state.ending
