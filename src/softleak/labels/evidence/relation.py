"""What a relation between a gradient and the scalar is, how probes test it, and the head's bias."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from softleak.core.client import capture
from softleak.core.factors import SMALLEST_NORMAL, Factors
from softleak.core.forward import logits_of, random_input, row_of_logits, seeded
from softleak.core.head import Head
from softleak.core.input_spec import Layout
from softleak.core.share import GradientShare
from softleak.numerics.recorder import watched

# How the error of a scalar follows from a misfit.
# A misfit of up to this many roundings is rounding alone. It is then independent from entry to
# entry and averages out; a larger one may not.
RELATION_INDEPENDENT = 16.0
RELATION_MARGIN = 4.0  # how many times the estimated error is stated, so that it is a bound


@dataclass(frozen=True, eq=False)
class Estimate:
    """What one relation says of N clients."""

    scalar: Tensor  # (N,) τ
    error: Tensor  # (N,) a bound of its absolute error
    misfit: Tensor  # (N,) ``‖g − predicted‖ / ‖g‖``. It is infinite if the gradient says nothing.

    def signed(self, sign: int) -> Estimate:
        """Return this estimate with an infinite misfit where τ does not have this sign."""
        misfit = torch.where(self.scalar * sign > 0, self.misfit, torch.inf)
        return Estimate(self.scalar, self.error, misfit)

    def where(self, chosen: Tensor, other: Estimate) -> Estimate:
        """Return this estimate for the ``chosen`` clients (N,), and another for the rest."""
        return Estimate(
            torch.where(chosen, self.scalar, other.scalar),
            torch.where(chosen, self.error, other.error),
            torch.where(chosen, self.misfit, other.misfit),
        )


class Relation(Protocol):
    """A relation says how the gradient of one parameter determines ``τ``."""

    @property
    def parameter(self) -> str:
        """Return the name of the parameter in the share."""

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


class Witness(Protocol):
    """A relation that can also tell one sample from several."""

    def notices(self, factors: Factors) -> Tensor:
        """Return (N,) whether a second sample would have broken each client's relation."""


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
    # The log density of the noise, given deviations and their variance.
    density: Callable[[Tensor, Tensor], Tensor]


@runtime_checkable
class NoisyRelation(Protocol):
    """A relation that also has a likelihood; behind noise, a relation without one is left out."""

    @property
    def parameter(self) -> str:
        """Return the name of the parameter in the share."""

    def log_likelihood(self, g: Tensor, seen: Blurred, tau: Tensor) -> Tensor:
        """Return the log likelihood (S,) of τ (S,), up to a constant, given one gradient (m,)."""


def log_normal(rest: Tensor, variance: Tensor) -> Tensor:
    """Return the log density of the normal distribution, up to a constant."""
    return -(variance.log() + rest.square() / variance) / 2


def log_laplace(rest: Tensor, variance: Tensor) -> Tensor:
    """Return the log density of Laplace's distribution, up to a constant."""
    return -rest.abs() * (2 / variance).sqrt() - variance.log() / 2


def least_squares(g: Tensor, direction: Tensor, factors: Factors, entry: float = 0.0) -> Estimate:
    """Solve ``g = τ · direction`` for τ by least squares.

    Args:
        g: (N, m) the gradients. A gradient of zeros says nothing and has an infinite misfit.
        direction: (N, m) the gradients that τ = 1 would give.
        entry: the size of the terms that a client sums, in its own precision, for one entry.

    Returns:
        The estimate, with an error that bounds the effect of rounding and of the misfit.
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


# How relations are fitted and checked.
PROBE_RUNS = 4  # the number of random inputs that the model is run on
PROBE_FITTED = 2  # how many of the runs coefficients are fitted to; the others check the fit
PROBE_TOLERANCE = 400.0  # how many roundings a relation may be off on a run
# A relation that leaves the scalar with a larger relative error is no evidence.
PROBE_UNCERTAIN = 0.01
PROBE_SEED = 0  # the seed of the random inputs and labels


@dataclass(frozen=True, eq=False)
class Probe:
    """One run of the model with everything known."""

    share: GradientShare  # the gradients of the run
    feature: Tensor  # (I,) what entered the head
    delta: Tensor  # (C,) ``δ = p − y``
    d: Tensor  # (I,) ``Wᵀδ``
    # The spatial size of the output of each parameter's module, by parameter.
    positions: dict[str, int]


def probe_runs(
    model: nn.Module, head: Head, shape: Layout, count: int, seed: int
) -> Iterator[Probe]:
    """Run the model on random inputs with random labels, which are uniform on the simplex."""
    generator, modules = torch.Generator().manual_seed(seed), dict(model.named_modules())
    for index in range(count):
        label = torch.rand(head.classes, generator=generator, dtype=torch.double).log().neg()
        label = label / label.sum()
        # Dropout in train mode draws from the global generator.
        watch = _Watch(head, modules)
        with seeded(seed + index, head.W), watched(modules, after=watch.look):
            share = capture(model, random_input(shape, index, generator), label)
        feature, logits = watch.seen
        delta = logits.softmax(-1) - label.to(logits.device)
        yield Probe(share, feature, delta, head.back(delta[None])[0], watch.positions)


class _Watch:
    """The head's input and output and the sizes of maps, as one run shows them."""

    def __init__(self, head: Head, modules: Mapping[str, nn.Module]) -> None:
        self.entered: tuple[Tensor, Tensor]
        self.seen: tuple[Tensor, Tensor]
        self.positions: dict[str, int] = {}
        self.head, self.modules = head, modules

    def look(self, name: str, inputs: tuple[Tensor, ...], output: object) -> None:
        """Record one module's output; the whole model's comes last."""
        if name == self.head.name and isinstance(output, Tensor):
            self.entered = inputs[0].detach(), output.detach()
        if not name and (logits := logits_of(output)) is not None:
            x, z = row_of_logits(*self.entered, logits.detach())
            self.seen = x[0].double(), z[0].double()
        if isinstance(output, Tensor) and output.ndim > 2:
            for parameter, _ in self.modules[name].named_parameters(name, recurse=False):
                self.positions[parameter] = output[0, 0].numel()


@dataclass(frozen=True)
class HeadBias:
    """The relation ``G_b = δ = τ u``: the classic bias ratio, over all rows at once."""

    parameter: str  # the name of the bias in a share
    accuracy: float = 0.0  # the relative error of ``τ`` that was seen on probes

    @property
    def explanation(self) -> str:
        """What the relation is, in one line for people."""
        return "the head's bias gradient is p − y itself"

    @property
    def coarsest(self) -> float:
        """The relative error of a gradient beyond which the relation says nothing."""
        return math.inf

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
