"""The probabilities ``p`` that a label and the noise of the logits leave, and how likely they are.

A label ``y`` fixes ``u = (p − y)/|p − y|``, and ``u`` fixes the logits of ``p``. Fixed-point steps
close this loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softleak.labels.noisy.gaussian import normal_draws
from softleak.labels.noisy.posterior import Posterior


@dataclass(frozen=True)
class ProbabilitySettings:
    """How the probabilities of a label are found.

    Attributes:
        steps: fixed-point steps, each extrapolated from the one before.
        settled: the largest change of probabilities, as a length, that the last of them may leave.
        damped: damped steps instead, where it leaves more.
        farthest: how many steps an extrapolation may go back or ahead.
        grid: scalars at which the evidence of other layers is evaluated.
        smallest: the smallest ``|p − y|``, and the smallest scalar.
        together: the number of probabilities that are handled together: as many as a cache holds.
        double: the number of probabilities up to which all steps are taken in float64. With more
            of them all but the last are taken in float32.
    """

    steps: int = 4
    settled: float = 1e-4
    damped: int = 15
    farthest: float = 3.0
    grid: int = 128
    smallest: float = 1e-12
    together: int = 2**17
    double: int = 2**22


PROBABILITIES = ProbabilitySettings()


@dataclass(frozen=True, eq=False)
class NoisyLogits:
    """M draws of what a gradient leaves open: noise of the logits (M, C) and normal lengths (M,).

    The lengths stand for those of features, which an unknown scale hides.
    """

    omega: Tensor
    lengths: Tensor

    @property
    def count(self) -> int:
        """Return the number M of draws."""
        return len(self.lengths)

    @classmethod
    def of(cls, posterior: Posterior, seed: int) -> NoisyLogits:
        """Return draws of the noise, with normal quantiles in random order as lengths."""
        omega = normal_draws(len(posterior.b)).to(posterior.b) @ posterior.signal.a_root.T
        levels = (torch.arange(len(omega), dtype=torch.double) + 0.5) / len(omega)
        order = torch.randperm(len(omega), generator=torch.Generator().manual_seed(seed))
        quantiles: Tensor = torch.special.ndtri(levels)
        return cls(omega, quantiles[order].to(posterior.b))

    def part(self, first: int, labels: int, each: int) -> NoisyLogits:
        """Return draws (labels, each, C) and (labels, each), different ones for every label.

        Label after label takes the next of them, from the draw number ``first`` on.
        """
        at = torch.arange(first, first + labels * each).view(labels, each) % self.count
        return NoisyLogits(self.omega[at], self.lengths[at])

    def to(self, dtype: torch.dtype) -> NoisyLogits:
        """Return these draws in another precision."""
        return NoisyLogits(self.omega.to(dtype), self.lengths.to(dtype))


@dataclass(frozen=True, eq=False)
class Weighed:
    """Labels with m draws of noise each: log likelihoods, scalars τ and sizes |t|, all (R, m)."""

    log: Tensor
    tau: Tensor
    size: Tensor


def weigh(posterior: Posterior, labels: Tensor, noise: NoisyLogits, each: int) -> Weighed:
    """Return how likely the gradient makes labels (R, C), each with so many draws of the noise."""
    entries = labels.numel() * each
    dtype = torch.double if entries <= PROBABILITIES.double else torch.float
    rows = max(PROBABILITIES.together // (each * labels.shape[1]), 1)
    parts, first = [], 0
    for some in torch.split(labels, rows):
        part = noise.part(first, len(some), each)
        parts.append(_weigh(posterior, some[:, None], part, dtype))
        first += len(some) * each
    log, tau, size = (torch.cat(field) for field in zip(*parts, strict=True))
    return Weighed(log + _evidence(posterior, tau), tau, size)


def _weigh(
    posterior: Posterior, labels: Tensor, noise: NoisyLogits, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log likelihood, τ and |t| of labels (R, 1, C) with noise, without other layers."""
    signal, typical = posterior.signal, posterior.typical
    p = agreeing_probabilities(posterior, labels.to(dtype), noise.to(dtype))
    u, size, tau = _direction(posterior, p.double() - labels, noise.lengths)
    along = u @ signal.mean
    log = ((u @ signal.gram) * u).sum(-1) / (2 * signal.noise**2)
    tau, size = tau[..., 0], size[..., 0]
    if posterior.scale_unknown:
        return torch.where(along > 0, log, -math.inf), tau, size
    prior = typical.log_prior(along.clamp_min(signal.noise), signal.noise, tau)
    return log + prior, tau, size


def agreeing_probabilities(posterior: Posterior, labels: Tensor, noise: NoisyLogits) -> Tensor:
    """Return the probabilities (R, m, C) that agree with labels (R, 1, C) and noise (R, m, …).

    A step goes to where the one before and this one together would leave the least change
    (Anderson's acceleration with a memory of one). If that does not settle, damped steps from the
    start are taken instead.
    """
    step = _Step.of(posterior, labels, noise)
    start = torch.full_like(noise.omega, 1 / labels.shape[-1])
    p, change = start, step(start) - start
    ahead = change / 2
    for _ in range(PROBABILITIES.steps):
        p = (p + ahead).clamp_min_(0.0)
        before, change = change, step(p) - p
        bend = change - before
        size: Tensor = torch.linalg.vector_norm(bend, dim=-1, keepdim=True)
        size = size.clamp_min_(PROBABILITIES.smallest).square_()
        back = ((change * bend).sum(-1, keepdim=True) / size).clamp_(
            -PROBABILITIES.farthest, PROBABILITIES.farthest
        )
        ahead = torch.addcmul(change, bend.add_(ahead), back, value=-1)
    p = (p + ahead).clamp_min_(0.0)
    restless = (change.norm(dim=-1) > PROBABILITIES.settled).nonzero(as_tuple=True)
    if len(restless[0]):
        p[restless] = step.take(restless).damped(start[restless])
    return p


@dataclass(frozen=True, eq=False)
class _Step:
    """A step from probabilities to those that their logits give, of labels (…, C) with noise."""

    posterior: Posterior
    labels: Tensor
    noise: NoisyLogits
    response: Tensor
    b: Tensor

    @classmethod
    def of(cls, posterior: Posterior, labels: Tensor, noise: NoisyLogits) -> _Step:
        return cls(
            posterior, labels, noise, posterior.signal.response.T.to(labels), posterior.b.to(labels)
        )

    def __call__(self, p: Tensor) -> Tensor:
        u, _, tau = _direction(self.posterior, p - self.labels, self.noise.lengths)
        logits = (u @ self.response).add_(self.noise.omega).div_(tau).add_(self.b)
        return torch.softmax(logits, -1)

    def take(self, rows: tuple[Tensor, ...]) -> _Step:
        """Return the steps of some labels and draws, in one list."""
        noise = NoisyLogits(self.noise.omega[rows], self.noise.lengths[rows])
        return replace(self, labels=self.labels.expand_as(self.noise.omega)[rows], noise=noise)

    def damped(self, p: Tensor) -> Tensor:
        """Return where damped steps lead from here."""
        for _ in range(PROBABILITIES.damped):
            p = self(p).add_(p).div_(2)
        return p


def _direction(
    posterior: Posterior, delta: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``u`` (…, C), |t| (…, 1) and τ (…, 1) for ``delta = p − y`` (…, C)."""
    size = delta.norm(dim=-1, keepdim=True).clamp_min(PROBABILITIES.smallest)
    u = delta / size
    if not posterior.scale_unknown:
        return u, size, size
    along = (u @ posterior.signal.mean.to(u.dtype)).clamp_min(PROBABILITIES.smallest)
    length = (posterior.typical.length + posterior.typical.doubt * lengths).exp()
    return u, size, (along / length)[..., None]


def _evidence(posterior: Posterior, tau: Tensor) -> Tensor:
    """Return the log likelihood of every τ, interpolated between the scalars of a grid."""
    if not posterior.evidence:
        return torch.zeros_like(tau)
    count = PROBABILITIES.grid
    low, high = float(tau.min()), float(tau.max()) + PROBABILITIES.smallest
    grid = torch.linspace(low, high, count).to(tau)
    known = torch.stack([piece(grid) for piece in posterior.evidence]).sum(0)
    right = torch.searchsorted(grid, tau.contiguous()).clamp(1, count - 1)
    part = (tau - grid[right - 1]) / (grid[right] - grid[right - 1])
    return torch.lerp(known[right - 1], known[right], part)
