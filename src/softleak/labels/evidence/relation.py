"""Relations between a gradient and the scalar: how probes test them, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from softleak.core.client import capture
from softleak.core.errors import ShareError
from softleak.core.factors import SMALLEST_NORMAL, Factors
from softleak.core.forward import logits_of, random_input, row_of_logits, seeded, watched
from softleak.core.head import Head
from softleak.core.input_spec import Inputs, Layout
from softleak.core.loss import CROSS_ENTROPY, BinaryCrossEntropy
from softleak.core.results import Evidence
from softleak.core.share import GradientShare

# How the error of a scalar follows from a misfit. A misfit of up to this many roundings is rounding
# alone. It is then independent from entry to entry and averages out; a larger one may not.
RELATION_INDEPENDENT = 16.0
RELATION_MARGIN = 4.0  # how many times the estimated error is stated, so that it is a bound


@dataclass(frozen=True, eq=False)
class Estimate:
    """What one relation, or all of them together, say of the scalars of N clients."""

    scalar: Tensor  # (N,) τ
    error: Tensor  # (N,) a bound of its absolute error
    misfit: Tensor  # (N,) ``‖g − predicted‖ / ‖g‖``. It is infinite if the gradient says nothing.
    pieces: tuple[tuple[Evidence, ...], ...] = ()  # what every relation says, for each client

    @cached_property
    def decided(self) -> Tensor:
        """Return (N,) whether there is evidence that holds; else scalar and error mean nothing."""
        return self.misfit.isfinite()

    def take(self, rows: Tensor) -> Estimate:
        """Return what it says of the clients with these indices."""
        if len(rows) == len(self.scalar) == 1:
            return self
        pieces = tuple(self.pieces[i] for i in rows.tolist())
        return Estimate(self.scalar[rows], self.error[rows], self.misfit[rows], pieces)

    def unsigned(self, client: int) -> bool:
        """Return whether the scalar is so uncertain that its sign, and the feature's, is open."""
        return bool(self.decided[client] & (self.error[client] >= self.scalar[client].abs()))

    def conflicts(self, client: int) -> tuple[Evidence, ...]:
        """Return the pieces that contradict the scalar, or that do not hold."""
        return tuple(piece for piece in self.pieces[client] if piece.refutes)


class Relation(Protocol):
    """How the gradient of one parameter determines ``τ``.

    A relation that can also tell one sample from several has a method ``notices(factors)``. It
    returns (N,) whether a second sample would have broken each client's relation.
    """

    @property
    def parameter(self) -> str:
        """The name of the parameter in the share."""

    @property
    def explanation(self) -> str:
        """What the relation is, in one line for people."""

    @property
    def coarsest(self) -> float:
        """The relative error of a gradient beyond which the relation says nothing."""

    @property
    def accuracy(self) -> float:
        """The relative error of ``τ`` that was seen on probes, where the truth is known."""

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        """Estimate ``τ`` from the gradients ``g`` (N, m) of N clients with these factors."""


@dataclass(frozen=True, eq=False)
class Blurred:
    """What noise leaves of one client's factors."""

    u: Tensor  # (C,) the mean of ``u``, and ``u_variance`` (C,) the variance of its entries
    u_variance: Tensor
    d: Tensor  # (I,) the mean of ``d = Wᵀu``, and ``d_variance`` (I,) the variance of its entries
    d_variance: Tensor
    x: Tensor  # (I,) the mean of ``σ v``, and ``x_variance`` (I,) the variance of its entries
    x_variance: Tensor
    noise: float  # the standard deviation of the noise on an entry of a gradient
    density: Callable[[Tensor, Tensor], Tensor]  # its log, given deviations and their variance


@runtime_checkable
class NoisyRelation(Protocol):
    """A relation that also has a likelihood; behind noise, a relation without one is left out."""

    @property
    def parameter(self) -> str:
        """The name of the parameter in the share."""

    def log_likelihood(self, g: Tensor, seen: Blurred, tau: Tensor) -> Tensor:
        """Return the log likelihood (S,) of τ (S,), up to a constant, given one gradient (m,)."""


def log_normal(rest: Tensor, variance: Tensor) -> Tensor:
    """Return the log density of the normal distribution, up to a constant."""
    return -(variance.log() + rest.square() / variance) / 2


def log_laplace(rest: Tensor, variance: Tensor) -> Tensor:
    """Return the log density of Laplace's distribution, up to a constant."""
    return -rest.abs() * (2 / variance).sqrt() - variance.log() / 2


def least_squares(g: Tensor, direction: Tensor, factors: Factors, entry: float = 0.0) -> Estimate:
    """Solve ``g = τ · direction`` (N, m) for τ by least squares; zeros have an infinite misfit.

    The error bounds the effect of the misfit and of rounding, where an ``entry`` is the size of the
    terms that a client sums for one, in its own precision.
    """
    size = direction.square().sum(-1).clamp_min(SMALLEST_NORMAL).sqrt()
    tau = (g * direction).sum(-1) / size.square()
    rest = torch.linalg.vector_norm(g - tau[:, None] * direction, dim=-1)
    whole = torch.linalg.vector_norm(g, dim=-1)
    misfit = torch.where(whole > 0, rest / whole.clamp_min(SMALLEST_NORMAL), torch.inf)
    independent = misfit <= RELATION_INDEPENDENT * factors.relative
    rest = torch.where(independent, rest / direction.shape[-1] ** 0.5, rest)
    rounding = factors.relative * tau.abs() * (1 + entry / size)
    return Estimate(tau, RELATION_MARGIN * (rest / size + rounding), misfit)


PROBE_TOLERANCE = 400.0  # how many roundings a relation may be off on a run


class Probe:
    """One run of the model on a random input with a random label, and so with everything known."""

    def __init__(self, model: nn.Module, head: Head, x: Inputs, label: Tensor) -> None:
        self.positions: dict[str, int] = {}  # the size of the output of each parameter's module
        self._head, self._modules = head, dict(model.named_modules())
        self._entered: tuple[Tensor, Tensor]
        self._seen: tuple[Tensor, Tensor]
        # One output has no softmax; a relation is one of residuals, whatever leaves them.
        loss = CROSS_ENTROPY if head.classes > 1 else BinaryCrossEntropy()
        with watched(self._modules, after=self._look):
            self.share = capture(model, x, label, loss)  # the gradients of the run
        self.feature, logits = self._seen  # (I,) what entered the head
        self.delta = loss.residual(logits, label.to(logits))  # (C,) ``δ``
        self.d = head.back(self.delta[None])[0]  # (I,) ``Wᵀδ``

    def _look(self, name: str, inputs: tuple[Tensor, ...], output: object) -> None:
        """Record one module's output; the whole model's comes last."""
        if name == self._head.name and isinstance(output, Tensor):
            self._entered = inputs[0].detach(), output.detach()
        if not name and (logits := logits_of(output)) is not None:
            x, z = row_of_logits(*self._entered, logits.detach())
            self._seen = x[0].double(), z[0].double()
        if isinstance(output, Tensor) and output.ndim > 2:
            for parameter, _ in self._modules[name].named_parameters(name, recurse=False):
                self.positions[parameter] = output[0, 0].numel()


def probe_runs(
    model: nn.Module, head: Head, shape: Layout, count: int, seed: int
) -> Iterator[Probe]:
    """Run the model on random inputs with random labels, which are uniform on the simplex."""
    generator = torch.Generator().manual_seed(seed)
    for index in range(count):
        label = torch.rand(head.classes, generator=generator, dtype=torch.double).log().neg()
        with seeded(seed + index, head.W):  # dropout in train mode draws from the global generator
            whole = label.sum() if head.classes > 1 else 1 + label.sum()
            run = Probe(model, head, random_input(shape, index, generator), label / whole)
        yield run


@dataclass(frozen=True)
class HeadBias:
    """The relation ``G_b = δ = τ u``: the classic bias ratio, over all rows at once."""

    parameter: str
    accuracy: float = 0.0
    explanation: ClassVar[str] = "the head's bias gradient is p − y itself"
    coarsest: ClassVar[float] = math.inf

    def solve(self, g: Tensor, head: Head, factors: Factors) -> Estimate:
        """Estimate ``τ`` by projecting the gradients ``g`` (N, C) onto ``u``."""
        return least_squares(g, factors.u, factors)

    def log_likelihood(self, g: Tensor, seen: Blurred, tau: Tensor) -> Tensor:
        """Return the log likelihood (S,) of τ (S,), up to a constant, given one gradient (C,)."""
        variance = seen.noise**2 + tau.square()[:, None] * seen.u_variance
        return seen.density(g - tau[:, None] * seen.u, variance).sum(-1)


def fit_head_bias(name: str, head: Head, _: Sequence[Probe]) -> list[HeadBias]:
    """Return the relation of the head's bias, if the parameter is that."""
    return [HeadBias(name)] if name == head.bias_name else []


COMBINE_MARGIN = 4.0  # how many times a known rounding or accuracy is counted
COMBINE_STANDARD_ERRORS = 8.0  # how many standard errors of independent rounding are allowed for


@torch.inference_mode()
def combine(
    relations: Sequence[Relation], shares: Sequence[GradientShare], head: Head, factors: Factors
) -> Estimate:
    """Solve every relation whose gradient the shares hold; the most exact that holds decides."""
    used = [r for r in relations if all(r.parameter in share for share in shares)]
    if not used:
        nothing = torch.full_like(factors.sigma, math.nan)
        return Estimate(nothing, nothing, nothing, ((),) * len(shares))
    gradients = [_gradients(relation, shares, head) for relation in used]
    solved = zip(used, gradients, strict=True)
    estimates = [relation.solve(g, head, factors) for relation, g in solved]
    scalar, error, misfit = (
        torch.stack([getattr(one, name) for one in estimates])  # (pieces, N)
        for name in ("scalar", "error", "misfit")
    )
    rounding, bound = _roundings(used, shares, head, factors, gradients)
    coarsest = scalar.new_tensor([relation.coarsest for relation in used])[:, None]
    own = scalar.new_tensor([shares[0].resolution(r.parameter, head.dtype) for r in used])[:, None]
    misfit = misfit.masked_fill(rounding + own > coarsest, math.inf)
    coarser = (own - factors.relative).clamp_min(0)
    seen = scalar.new_tensor([relation.accuracy for relation in used])[:, None]
    error = error + (bound + COMBINE_MARGIN * (coarser + seen)) * scalar.abs()
    # A share may be rounded more coarsely than its dtype (a difference of checkpoints). That is no
    # contradiction.
    holds = (misfit <= factors.relative**0.5 + COMBINE_MARGIN * rounding) & (scalar != 0)
    best = torch.where(holds, error / scalar.abs(), math.inf).argmin(0, keepdim=True)
    tau, spread = scalar.gather(0, best)[0], error.gather(0, best)[0]
    agrees = holds & ((scalar - tau).abs() <= error + spread)
    # Whether a second sample would have shown, as far as a relation can say.
    nothing = torch.zeros_like(factors.sigma, dtype=torch.bool)
    tells = (getattr(relation, "notices", lambda _: nothing) for relation in used)
    notices = torch.stack([told(factors) for told in tells])
    columns = [x.T.tolist() for x in (scalar, error, misfit, holds, agrees, agrees & notices)]
    named = [partial(Evidence, one.parameter, one.explanation) for one in used]
    pieces = tuple(
        tuple(piece(*values) for piece, *values in zip(named, *rows, strict=True))
        for rows in zip(*columns, strict=True)
    )
    return Estimate(tau, spread, misfit.masked_fill(~holds, math.inf).amin(0), pieces)


def _gradients(relation: Relation, shares: Sequence[GradientShare], head: Head) -> Tensor:
    """Return the gradients (N, m) of the relation's parameter, in float64."""
    shapes = {tuple(share[relation.parameter].shape) for share in shares}
    if len(shapes) > 1:
        raise ShareError(f"the shares hold {relation.parameter!r} in different shapes: {shapes}")
    stacked = torch.stack([share[relation.parameter] for share in shares])
    return stacked.to(head.W.device).double()


def _roundings(
    relations: Sequence[Relation], shares: Sequence[GradientShare], head: Head, factors: Factors,
    gradients: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the known rounding of gradients relative to their norms, and the error of ``τ`` by it.

    Both are (pieces, N). If the rounding of every entry is independent, that of the gradient ``g``
    itself counts directly, and that of the head's gradient counts through ``d = Wᵀu``, by at most
    the norm of ``W``. In no case is the error larger than if all entries of ``g`` are off together.
    """
    tiny = torch.finfo(torch.double).tiny
    errors = [[share.rounding.get(r.parameter, 0.0) for share in shares] for r in relations]
    absolute = gradients[0].new_tensor(errors)
    if not any(map(any, errors)):
        return absolute, absolute  # as most shares have it
    sizes = torch.stack([torch.linalg.vector_norm(g, dim=-1) for g in gradients]).clamp_min(tiny)
    entries = sizes.new_tensor([g.shape[1] ** 0.5 for g in gradients])[:, None]
    rounding = absolute * entries / sizes
    d = torch.linalg.vector_norm(head.back(factors.u), dim=-1).clamp_min(tiny)
    through = head.norm * factors.absolute / factors.sigma.clamp_min(tiny) / d
    independent = COMBINE_STANDARD_ERRORS * (absolute / sizes + through)
    return rounding, independent.minimum(COMBINE_MARGIN * rounding)
