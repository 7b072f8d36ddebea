"""Adam and L-BFGS for many problems at once; several attempts share the evaluations of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from softleak.core.results import Status
from softleak.matching.problems import MatchingProblems
from softleak.matching.reconstruction import Stopping

STATUSES = tuple(Status)


@dataclass(frozen=True, eq=False)
class Minimum:
    """The best iterates of P problems."""

    unknowns: Tensor  # the iterates (P, n) of the lowest loss
    loss: Tensor  # that loss (P,)
    evaluations: Tensor  # how many evaluations each problem took, (P,)
    ending: Tensor  # how each problem ended (P,), as an index into ``STATUSES``

    @property
    def statuses(self) -> list[Status]:
        return [STATUSES[int(index)] for index in self.ending]


@runtime_checkable
class Optimiser(Protocol):
    """A configured minimiser of many independent problems."""

    @property
    def evaluations(self) -> int:
        """How many evaluations of the loss and its gradient a problem may have."""

    @property
    def vectors(self) -> int:
        """How many vectors of unknowns the optimiser holds for one problem."""

    def part(self, first: float, last: float) -> Optimiser:
        """Return this optimiser limited to its evaluations from one fraction to another."""

    def minimise(self, problems: MatchingProblems, start: Tensor, stopping: Stopping) -> Minimum:
        """Minimise each of P problems by itself, from its first iterate ``start`` (P, n).

        ``problems.evaluator()`` maps unknowns (P, n) to losses (P,) and their gradients (P, n), and
        ``problems.select(rows)`` gives some of the problems. ``stopping`` is told of every
        evaluation and asked whether to go on.
        """


@dataclass(frozen=True)
class Adam:
    """Adam with a learning rate that falls in steps; one evaluation per step."""

    lr: float = 0.1  # the learning rate at the beginning
    steps: int = 4800  # the number of steps of the whole schedule
    first: float = 0.0  # the fraction of the schedule at which this optimiser begins
    last: float = 1.0  # the fraction at which it ends
    decay_at: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)  # where in the schedule the rate falls
    decay: float = 0.1  # the factor by which it falls
    betas: tuple[float, float] = (0.9, 0.999)  # decay rates of the means of gradient and square
    epsilon: float = 1e-8  # what is added to the root of the mean square

    @property
    def vectors(self) -> int:
        return 6

    @property
    def evaluations(self) -> int:
        return round(self.steps * self.last) - round(self.steps * self.first)

    def part(self, first: float, last: float) -> Adam:
        return replace(self, first=first, last=last)

    def minimise(self, problems: MatchingProblems, start: Tensor, stopping: Stopping) -> Minimum:
        """Minimise; a problem whose loss is no longer finite stays where it was."""
        evaluate = problems.evaluator()
        x, mean, square = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
        best = start.clone()
        lowest = torch.full_like(start[:, 0], torch.inf)
        count = torch.zeros(len(start), dtype=torch.long, device=start.device)
        sound = torch.ones_like(lowest, dtype=torch.bool)
        begin = round(self.steps * self.first)
        for step in range(begin, begin + self.evaluations):
            if stopping.over or not bool(sound.any()):
                break
            loss, slope = evaluate(x)
            count += sound
            sound = sound & loss.isfinite() & slope.isfinite().all(1)
            better = sound & (loss < lowest)
            lowest = torch.where(better, loss, lowest)
            best = torch.where(better[:, None], x, best)
            mean.lerp_(slope, 1 - self.betas[0])
            square.lerp_(slope.square(), 1 - self.betas[1])
            number = step - begin + 1
            root = (square / (1 - self.betas[1] ** number)).sqrt_().add_(self.epsilon)
            moved = self.rate(step) * mean / (1 - self.betas[0] ** number) / root
            x = torch.where(sound[:, None], x - moved, x)
            stopping.tell(len(start), lowest, int(sound.sum()))
        index = torch.where(sound, STATUSES.index(stopping.ended), STATUSES.index(Status.DIVERGED))
        return Minimum(best, lowest, count, index)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from the beginning of the schedule."""
        falls = sum(step >= fall * self.steps for fall in self.decay_at)
        return float(self.lr * self.decay**falls)


@dataclass(eq=False)
class History:
    """The last m steps of P problems in n unknowns, as a ring buffer for each problem."""

    s: Tensor  # the steps (P, m, n)
    y: Tensor  # the changes of slope over them (P, m, n)
    sy: Tensor  # the products ``s_i · y_j`` of all pairs (P, m, m), in float64
    yy: Tensor  # the products ``y_i · y_j``, likewise
    slot: Tensor  # where the next pair goes (P,), which is where the oldest one is
    floor: float = 1e-10  # a pair with s·y below this part of ‖s‖‖y‖ says nothing of the curvature

    @classmethod
    def empty(cls, like: Tensor, length: int) -> History:
        """Return an empty history of this length, for unknowns like (P, n)."""
        count, size = like.shape
        s, y = like.new_zeros(2, count, length, size)
        sy, yy = torch.zeros(2, count, length, length, dtype=torch.double, device=like.device)
        return cls(s, y, sy, yy, torch.zeros(count, dtype=torch.long, device=like.device))

    @property
    def bare(self) -> Tensor:
        """Whether nothing is remembered of each problem, (P,)."""
        return (self.sy.diagonal(dim1=1, dim2=2) == 0).all(1)

    def select(self, rows: Tensor) -> History:
        s, y, sy, yy = (part[rows] for part in (self.s, self.y, self.sy, self.yy))
        return History(s, y, sy, yy, self.slot[rows], self.floor)

    def forget(self, rows: Tensor) -> None:
        """Empty the history of the problems of a mask (P,)."""
        if bool(rows.any()):
            for part in (self.s, self.y, self.sy, self.yy):
                part[rows] = 0

    def remember(self, rows: Tensor, s: Tensor, y: Tensor) -> None:
        """Store pairs (P, n) for the problems of a mask, unless they show no curvature."""
        product = (s * y).sum(1)
        curved = rows & (product > self.floor * s.norm(dim=1) * y.norm(dim=1)) & product.isfinite()
        rows = curved.nonzero()[:, 0]
        slot = self.slot[rows]
        self.s[rows, slot], self.y[rows, slot] = s[rows], y[rows]
        of_s = (self.s @ y[..., None])[rows, :, 0].double()
        of_y = (self.y @ torch.stack([s, y], -1))[rows].double()
        self.sy[rows, :, slot], self.sy[rows, slot] = of_s, of_y[..., 0]
        self.yy[rows, :, slot] = self.yy[rows, slot] = of_y[..., 1]
        self.slot[rows] = (slot + 1) % self.sy.shape[1]

    def step(self, slope: Tensor) -> Tensor:
        """Return ``−H g`` (P, n) for slopes ``g`` (P, n).

        ``H`` is the inverse Hessian in its compact form (Byrd, Nocedal and Schnabel 1994, Eq. 2.6).
        """
        sy, yy = self._in_order(self.sy), self._in_order(self.yy)
        curvature = sy.diagonal(dim1=1, dim2=2)
        last = curvature[:, -1] / yy[:, -1, -1]
        gamma = torch.where(last.isfinite() & (last > 0), last, 1.0)[:, None]
        R = sy.triu() + torch.where(curvature == 0, 1.0, 0.0).diag_embed()
        along = ((part @ slope[..., None])[..., 0].double() for part in (self.s, self.y))
        p, q = (self._rolled(product, 1) for product in along)
        a = torch.linalg.solve_triangular(R, p[..., None], upper=True)[..., 0]
        right = curvature * a + gamma * ((yy @ a[..., None])[..., 0] - q)
        b = torch.linalg.solve_triangular(R.mT, right[..., None], upper=False)[..., 0]
        a, b = self._rolled(gamma * a, -1).to(slope), self._rolled(b, -1).to(slope)
        found = (a[:, None] @ self.y)[:, 0] - (b[:, None] @ self.s)[:, 0]
        return torch.addcmul(found, gamma.to(slope), slope, value=-1)

    def _rolled(self, entries: Tensor, way: int) -> Tensor:
        """Return entries (P, m) in order of age, the oldest first; or back if ``way`` is −1."""
        place = torch.arange(entries.shape[1], device=entries.device)
        return entries.gather(1, (place + way * self.slot[:, None]) % entries.shape[1])

    def _in_order(self, products: Tensor) -> Tensor:
        """Return products (P, m, m) with both sides in order of age."""
        place = torch.arange(products.shape[1], device=products.device)
        order = (place + self.slot[:, None]) % products.shape[1]
        each = torch.arange(len(products), device=products.device)[:, None, None]
        return products[each, order[:, :, None], order[:, None, :]]


GOING_ON = -1  # in place of an ending
DECREASE = 1e-4  # the part of the decrease the slope promises that a step gains at least
SLOPE_LEFT = 0.9  # the part of the slope that may be left after a step
MOST_TRIALS = 25  # steps that are tried along one direction
MARGIN = 0.1  # how near a bracket's ends interpolation may go, in parts of its width


@dataclass(eq=False)
class Descent:
    """Where each of P problems is, and its search along one direction."""

    problem: Tensor  # which problem each row belongs to (P,)
    x: Tensor  # the iterates (P, n)
    loss: Tensor  # their losses (P,)
    slope: Tensor  # the gradients of the losses (P, n)
    direction: Tensor  # the directions of the searches (P, n)
    down: Tensor  # ``slope · direction``, which is negative (P,)
    step: Tensor  # the step lengths to be tried next (P,)
    low: Tensor  # the longest step known to be short enough (P,)
    high: Tensor  # the shortest step known to be too long, infinite if there is none (P,)
    trials: Tensor  # how many steps were tried along the direction (P,)
    marked: Tensor  # the loss when progress was last looked at (P,)
    ending: Tensor  # how the problem ended, or ``GOING_ON`` (P,)

    @property
    def going(self) -> Tensor:
        """Whether each problem is still going on, (P,)."""
        return self.ending == GOING_ON

    def select(self, rows: Tensor) -> Descent:
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

    def judge(self, loss: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the next step, and return masks (P,): whose is taken, and where none was found.

        A step is taken if it keeps the weak Wolfe conditions, or gains after the last trial.
        """
        sound = loss.isfinite() & slope.isfinite().all(1)
        gained = loss <= self.loss + DECREASE * self.step * self.down
        gained = gained & sound & (loss < self.loss)
        flat = (slope * self.direction).sum(1) >= SLOPE_LEFT * self.down
        self.trials = self.trials + 1
        tired = self.trials >= MOST_TRIALS
        self._narrow(gained, sound, loss)
        return self.going & gained & (flat | tired), self.going & ~gained & tired

    def _narrow(self, gained: Tensor, sound: Tensor, loss: Tensor) -> None:
        """Choose the next step: within the bracket, or twice as long while there is none."""
        step = self.step
        self.high = torch.where(gained, self.high, step)
        self.low = torch.where(gained, step, self.low)
        width = self.high - self.low
        # A parabola through the start, its slope and the trial; its lowest point if that is inside.
        bent = loss - self.loss - step * self.down
        lowest = -self.down * step.square() / (2 * bent)
        inside = torch.where(sound & (self.low == 0) & lowest.isfinite(), lowest, step / 2)
        margin = MARGIN * width
        inside = inside.maximum(self.low + margin).minimum(self.high - margin)
        middle = torch.where(gained, self.low + width / 2, inside)
        self.step = torch.where(self.high.isfinite(), middle, 2 * step)


CONVERGED, DIVERGED = map(STATUSES.index, (Status.CONVERGED, Status.DIVERGED))


@dataclass(frozen=True)
class LBFGS:
    """L-BFGS with the paper's 300 steps of 20 evaluations, all of them spent on trials."""

    lr: float = 1.0  # the first step tried along a direction
    steps: int = 300  # the number of the paper's outer steps
    inner: int = 20  # the evaluations of one outer step
    history: int = 20  # how many steps the estimate of the curvature remembers
    first: float = 0.0  # the fraction of the evaluations at which this optimiser begins
    last: float = 1.0  # the fraction at which it ends
    patience: int = 200  # a problem ends if its loss falls too little in so many evaluations
    progress: float = 1e-4  # the part of the loss by which it must fall in that time

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
        taken, lost = state.judge(loss, slope)
        history.remember(taken, moved, slope - state.slope)
        state.move(taken, moved, loss, slope)
        self._turn(state, history, taken, lost)

    def _turn(self, state: Descent, history: History, taken: Tensor, lost: Tensor) -> None:
        """Choose new directions: that of L-BFGS after a step, else that of steepest descent."""
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
    done.unknowns[state.problem] = state.x
    done.loss[state.problem] = state.loss
    done.ending[state.problem] = state.ending


TRIAL = 0.1  # the part of the evaluations of each attempt, before the best goes on
MOST_RESTARTS = round(1 / TRIAL) - 2  # that leave the best attempt something to go on with


def minimise_attempts(
    optimiser: Optimiser, problems: MatchingProblems, starts: Sequence[Tensor], stopping: Stopping
) -> Minimum:
    """Run all attempts for a while, then the best one of each problem to the end."""
    count, first = len(starts), starts[0]
    if count == 1:
        return optimiser.minimise(problems, first, stopping)
    rows = torch.arange(len(first), device=first.device)
    tried = optimiser.part(0.0, TRIAL).minimise(
        problems.select(rows.repeat(count)), torch.cat([*starts]), stopping
    )
    best = tried.loss.nan_to_num(torch.inf).view(count, -1).argmin(0)
    rest = optimiser.part(TRIAL * count, 1.0)
    minimum = rest.minimise(problems, tried.unknowns[best * len(first) + rows], stopping)
    spent = tried.evaluations.view(count, -1).sum(0)
    return replace(minimum, evaluations=minimum.evaluations + spent)
