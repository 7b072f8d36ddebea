"""Solve for inputs of networks whose units switch, with the masks of doubtful units as unknowns.

With its masks given a network of ReLUs is smooth. Where an iterate is a little wrong, units whose
input is near zero are on the wrong side: their masks are unknowns beside the pixels, each with the
probability that its predicted error gives it. Every other operation that switches is written by
gates: a maximum, a clamp, hard-swish.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from softleak.matching.gauss_newton.descent import root_mean_square
from softleak.matching.gauss_newton.equations import BatchEquations, BatchFunction
from softleak.matching.gauss_newton.metric import Metric
from softleak.matching.gauss_newton.products import BatchModel, TangentProducts
from softleak.matching.reconstruction import Stopping

Gate = Callable[[Tensor], Tensor]


def _clamped(gate: Gate, x: Tensor, low: float | None, high: float | None) -> Tensor:
    above = x if low is None else low + gate(x - low)
    return above if high is None else above - gate(x - high)


def _pooled(gate: Gate, x: Tensor, size: Any, stride: Any, padding: Any) -> Tensor:  # noqa: ANN401
    """Return the largest entry of each window, by a tournament of gates."""
    (high, wide), (down, right), (top, left) = (
        one if isinstance(one, (tuple, list)) else (one, one)
        for one in (size, stride or size, padding)
    )
    x = F.pad(x, (left, left, top, top), value=-1e4) if top or left else x
    rows, columns = (x.shape[-2] - high) // down + 1, (x.shape[-1] - wide) // right + 1
    rivals = [
        x[..., i : i + down * rows : down, j : j + right * columns : right][..., :rows, :columns]
        for i in range(high) for j in range(wide)
    ]  # fmt: skip
    while len(rivals) > 1:
        pairs = list(zip(rivals[::2], rivals[1::2], strict=False))
        rivals = [b + gate(a - b) for a, b in pairs] + rivals[2 * len(pairs) :]
    return rivals[0]


WRITTEN: dict[str, Callable[..., Tensor]] = {
    "relu": lambda gate, x, inplace=False: gate(x),
    "relu_": lambda gate, x: gate(x),
    "leaky_relu": lambda gate, x, negative_slope=0.01, inplace=False: (
        negative_slope * x + (1 - negative_slope) * gate(x)
    ),
    "relu6": lambda gate, x, inplace=False: _clamped(gate, x, 0.0, 6.0),
    "hardtanh": lambda gate, x, min_val=-1.0, max_val=1.0, inplace=False: _clamped(
        gate, x, min_val, max_val
    ),
    "clamp": lambda gate, x, min=None, max=None: _clamped(gate, x, min, max),
    "hardswish": lambda gate, x, inplace=False: x * _clamped(gate, x + 3, 0.0, 6.0) / 6,
    "max_pool2d": lambda gate, x, kernel_size, stride=None, padding=0: _pooled(
        gate, x, kernel_size, stride, padding
    ),
}


class Gates(TorchFunctionMode):
    """The units of a network that switch, each an input times a mask: one given, or its own."""

    def __init__(self, given: Tensor | None = None) -> None:
        super().__init__()
        self.given, self.taken = given, 0
        self.seen: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (),  # noqa: ANN401 - of any kind
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # fmt: skip  # noqa: ANN401 - whatever the function returns
        written = WRITTEN.get(getattr(func, "__name__", ""))
        if written is None:
            return func(*args, **(kwargs or {}))
        own = {("x" if k == "input" else k): v for k, v in (kwargs or {}).items()}
        if own.get("dilation") == 1 and not (own.get("ceil_mode") or own.get("return_indices")):
            own = {k: v for k, v in own.items() if k in ("x", "stride", "padding")}
        try:
            return written(self._gate, *args, **own)
        except TypeError:  # called in a way that is not written here
            return func(*args, **(kwargs or {}))

    def _gate(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        if self.given is None:
            return x * (x > 0)
        mask = self.given[self.taken : self.taken + x.numel()].view(x.shape)
        self.taken += x.numel()
        return x * mask


@dataclass(frozen=True, eq=False)
class HeldFunction(BatchFunction):
    """What a client sends if the masks of all units are held at given ones."""

    masks: Tensor  # (U,)

    def mode(self) -> Gates:
        return Gates(self.masks)


@dataclass(frozen=True, eq=False)
class GatedFunction(BatchFunction):
    """What a client sends as a function of the unknowns of a batch, followed by all masks (U,)."""

    units: int = 0  # the number of masks

    @classmethod
    def of(cls, base: BatchFunction) -> GatedFunction:
        """Count the units of a function that switch."""
        made = cls(base.model, base.names, base.shape)
        return replace(made, units=len(made.entered(base.like.new_zeros(base.pixels))))

    @property
    def free(self) -> int:
        """Return how many unknowns there are beside the masks."""
        return super().unknowns

    @property
    def unknowns(self) -> int:
        return self.free + self.units

    def groups(self, z: Tensor) -> list[Tensor]:
        """Return the groups of rows at unknowns and masks ``z``."""
        return self.held(z[self.free :]).groups(z[: self.free])

    def held(self, masks: Tensor) -> HeldFunction:
        """Return the function of the unknowns alone, at masks (U,)."""
        return HeldFunction(self.model, self.names, self.shape, masks)

    def entered(self, z: Tensor) -> Tensor:
        """Return what enters every unit (U,) at unknowns, or at the inputs among them."""
        x = z[: self.pixels].to(self.like).view(self.shape)
        with torch.no_grad(), Gates() as gates:
            self.model.model(x)
        return torch.cat([one.reshape(-1) for one in gates.seen] or [x.new_zeros(0)])

    def own(self, z: Tensor) -> Tensor:
        """Return unknowns followed by the masks that their inputs have."""
        return torch.cat([z, (self.entered(z) > 0).to(z)])


@dataclass(frozen=True, eq=False)
class GatedModel:
    """A network with masks as unknowns, and its recorded products in float32."""

    exact: GatedFunction  # in float64
    products: TangentProducts  # of the same function in float32
    room: int  # how many masks may be unknowns, for their Jacobian to fit in memory

    @classmethod
    def of(cls, model: BatchModel) -> GatedModel:
        """Return what is remembered of a model, or make it."""
        if model not in _MADE:
            quick = TangentProducts(GatedFunction.of(model.quick), model.memory // 4)
            exact = GatedFunction.of(model.exact)
            room = model.memory // (4 * sum(exact.sizes.values())) - exact.free
            _MADE[model] = cls(exact, quick, room)
        return _MADE[model]


_MADE: WeakKeyDictionary[BatchModel, GatedModel] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class MaskDoubt:
    """What is not known of the masks at an iterate."""

    chosen: Tensor  # the units (K,) whose masks are unknowns
    chance: Tensor  # the probability (U,) that each unit is on

    @classmethod
    def of(cls, entered: Tensor, error: Tensor, count: int) -> MaskDoubt:
        """MaskDoubt those units whose inputs (U,) are smallest in units of their errors (U,).

        The errors' own size is hardly known: the last unit in doubt counts as two errors from zero.
        """
        moves = error > 0  # two units that are off leave nothing to a maximum of both
        count = min(count, int(moves.sum()))
        far = torch.where(moves, entered.abs() / error, math.inf)
        size = float(far.kthvalue(count).values) / 2 if count else 1.0
        likely = torch.special.ndtr(entered / error / max(size, 1e-30))
        chance = torch.where(moves, likely, (entered > 0).to(likely))
        return cls(far.topk(count, largest=False).indices, chance)

    @property
    def precision(self) -> Tensor:
        """Return the inverse variance (K,) of the masks beforehand."""
        own = self.chance[self.chosen]
        return 1 / (own * (1 - own)).clamp_min(1e-3)


DAMPINGS = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2)  # that are tried, the best of which counts
HARDLY = 0.95  # a step that leaves more of the misfit at the masks of the image gains little
EXPLAINED = 0.1  # solved masks that leave less of the misfit are kept for the next round
UNSURE = 0.3  # the error of the first iterate, in spreads of the inputs


@dataclass(frozen=True)
class MaskDescent:
    """Solve for inputs and for the masks of doubtful units, round by round.

    In every round a unit is on with the probability that the predicted error of its input gives.
    The most doubtful masks are unknowns beside the inputs. The next error is predicted by drawing
    masks: what wrong ones do to the share moves the inputs. Fewer units are in doubt each time.
    """

    part: float = 0.3  # of all units, in doubt at first
    shrink: float = 0.8  # the part of them that is still in doubt in the next round
    least: int = 80  # units that are in doubt to the end
    most: int = 3000  # units that are in doubt at most
    rounds: int = 24
    draws: int = 4  # of masks, to predict errors

    def __call__(
        self, model: GatedModel, equations: BatchEquations, metric: Metric, z: Tensor,
        precise: float, stopping: Stopping,
    ) -> Tensor:  # fmt: skip
        """Return the best unknowns (n,) on the way from ``z``; the misfit is to be ``precise``."""
        gated, generator = model.exact, torch.Generator().manual_seed(0)
        spread = UNSURE * float(z[: gated.pixels].std())
        shape = (self.draws, len(z))
        moved = torch.randn(shape, generator=generator, dtype=torch.double) * spread
        found = [(root_mean_square(equations.residual(z)), z)]
        most = min(self.most, model.room - self.least, int(self.part * gated.units))
        if model.room < 2 * self.least:
            return z
        doubt, at = self._doubted(gated, z, moved, most), gated.own(z)
        for _ in range(self.rounds):
            if stopping.over or found[-1][0] < precise:
                break
            step = MaskRound.of(model, equations, metric, at, doubt, self.draws, generator).best()
            if step is None:
                break
            z = step.solved[: len(z)]
            if step.explains:
                doubt, at = replace(doubt, chance=step.solved[len(z) :]), step.solved
            else:
                most = int(self.shrink * most)
                doubt, at = self._doubted(gated, z, step.moved, most), gated.own(z)
            found.append((root_mean_square(equations.residual(z)), z))
            stopping.tell(1, torch.tensor([found[-1][0]]), 1)
        return min(found, key=lambda one: one[0])[1]

    def _doubted(self, gated: GatedFunction, z: Tensor, moved: Tensor, most: int) -> MaskDoubt:
        """Return what is doubted in a round, from errors (draws, n) of the unknowns ``z`` (n,)."""
        entered = gated.entered(z)
        off = torch.stack([gated.entered(z + one) - entered for one in moved])
        count = min(gated.units, most + self.least)
        return MaskDoubt.of(entered, off.square().mean(0).sqrt(), count)


class MaskStep(NamedTuple):
    """Where a step on unknowns and masks leads."""

    solved: Tensor  # the unknowns and all masks, (n + U,), the doubtful ones as they were solved
    hard: float  # the squared misfit that is left if every mask is that of the image
    soft: float  # the same with the masks that were solved, and what is known of them beforehand
    moved: Tensor  # the errors (draws, n) of the unknowns by wrong masks
    explains: bool = False  # whether its masks explain most of what was left


@dataclass(frozen=True, eq=False)
class MaskRound:
    """The linear equations for unknowns and doubtful masks at one iterate."""

    gated: GatedFunction  # what was sent, as a function of unknowns and masks, in float64
    equations: BatchEquations  # the equations of the share
    metric: Metric  # how long a change of the inputs is
    z: Tensor  # the iterate (n,)
    doubt: MaskDoubt  # the masks there
    weight: Tensor  # the weight (R,) of each row: a layer counts by what is left of it
    matrix: Tensor  # the normal matrix (n + K, n + K), with what is known of masks beforehand
    slopes: Tensor  # ``Jᵀ r`` (n + K, 1 + draws), first of the residuals, then of drawn masks
    before: float  # the squared misfit at the iterate, with the likely masks

    @classmethod
    def of(
        cls, model: GatedModel, equations: BatchEquations, metric: Metric, at: Tensor,
        doubt: MaskDoubt, draws: int, generator: torch.Generator,
    ) -> MaskRound:  # fmt: skip
        """Linearise at unknowns and masks ``at`` (n + U,), the masks being as likely as doubted."""
        gated, products = model.exact, model.products
        chance, chosen, z = doubt.chance, doubt.chosen, at[: gated.free]
        n = len(z)
        with torch.no_grad():
            left = equations.parted((gated.rows(at) - equations.target) * equations.weight)
        sizes = torch.cat([torch.full_like(one, root_mean_square(one)) for one in left.values()])
        weight = equations.weight / sizes.clamp_min(1.0)
        at = torch.cat([z, chance])
        drawn = (torch.rand(draws, len(chance), generator=generator, dtype=z.dtype) < chance).to(z)
        with torch.no_grad():
            rows = gated.rows(at)
            others = [gated.rows(torch.cat([z, masks])) - rows for masks in drawn]
        r = torch.stack([rows - equations.target, *others]) * weight
        columns = torch.cat([torch.arange(n), n + chosen])
        jacobian, r = products.reduced(at, r, weight, columns=columns)
        matrix = (jacobian @ jacobian.T).double()
        matrix.diagonal()[n:] += doubt.precision
        slopes = (jacobian @ r.T).double()
        slopes[n:, 1:] += doubt.precision[:, None] * (chance - drawn).T[chosen]
        before = float(r[0].square().sum())
        return cls(gated, equations, metric, z, doubt, weight, matrix, slopes, before)

    def best(self) -> MaskStep | None:
        """Return the best step, if there is one: that which leaves least at the image's own masks.

        If none leaves much less than before, or if the masks that were solved for explain most of
        what was left, these count. Masks that explain most of it are kept.
        """
        steps = [step for damping in DAMPINGS if (step := self._step(damping)) is not None]
        if not steps:
            return None
        soft, hard = min(steps, key=lambda one: one.soft), min(steps, key=lambda one: one.hard)
        if hard.hard < EXPLAINED * self.before:
            own = self.gated.own(hard.solved[: len(self.z)])
            return hard._replace(solved=own, explains=True)
        if soft.soft < EXPLAINED * min(self.before, hard.hard):
            return soft._replace(explains=True)
        return soft if hard.hard > HARDLY * self._left(self.gated.own(self.z)) else hard

    def _step(self, damping: float) -> MaskStep | None:
        """Return where a damped step leads; None if there is none at this damping."""
        n, damped = len(self.z), self.matrix.clone()
        damped[:n, :n] = self.metric.damped(self.matrix[:n, :n], damping)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if int(failed):
            return None
        steps = torch.cholesky_solve(self.slopes, factor)
        solved, chosen = self.gated.own(self.z - steps[:n, 0]), self.doubt.chosen
        hard, before = self._left(solved), self.doubt.chance[chosen]
        masks = (before - steps[n:, 0]).clamp(0, 1)
        solved[n + chosen] = masks
        known = float((masks - before).square() @ self.doubt.precision)
        return MaskStep(solved, hard, self._left(solved) + known, steps[:n, 1:].T)

    def _left(self, at: Tensor) -> float:
        """Return the squared misfit at unknowns and masks."""
        with torch.no_grad():
            r = (self.gated.rows(at) - self.equations.target) * self.weight
        return float(r.square().sum())
