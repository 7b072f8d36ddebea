"""The probability of every scalar and label, given a noisy head gradient.

At a scalar τ the pseudo label ŷ(τ) is the true one plus noise of a known covariance: that of ``u``
and, through the softmax, that of ``a``. A family's simplex is then met or not, and where.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.labels.noisy.features import Typical
from softleak.labels.noisy.patches import Patches
from softleak.labels.noisy.signal import Signal
from softleak.labels.noisy.truncated import draw_inside
from softleak.labels.pseudo import LARGEST
from softleak.labels.scale import segment_end

DRAWS = 64  # of the logits' noise, at least
FLOOR = 1e-14  # a variance that float32 leaves in any label entry
ROOTS = 40  # steps to that root
EDGE = 1e-6  # the unit cube's, where a normal variable is infinite
RIDGE = 1e-12  # relative, where a family leaves a weight open

Evidence = Callable[[Tensor], Tensor]  # log likelihoods (S,) at scalars τ (S,)


@dataclass(frozen=True, eq=False)
class Points:
    """Labels at S scalars, P simplices and K draws each, with their log weights (S, P, K).

    ``weights`` (S, P, K, d) are those of all corners but the first, ``size`` (S, P, K) is |t|, and
    ``misfit`` (S, P) the squared distance from the simplex's plane in standard deviations.
    """

    log: Tensor
    weights: Tensor
    size: Tensor
    misfit: Tensor


@dataclass(frozen=True, eq=False)
class Posterior:
    """Everything that is known of one client, as a function of τ."""

    signal: Signal
    b: Tensor
    patches: Patches
    scale_unknown: bool
    typical: Typical
    evidence: tuple[Evidence, ...] = ()

    def moments(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (S, C) and covariance (S, C, C) of the probabilities, over the noise of ``a``."""
        a = self.signal.a + normal_draws(len(self.b)).to(self.b) @ self.signal.a_root.T
        p = torch.softmax(a / tau[:, None, None] + self.b, -1)
        mean = p.mean(1)
        off = p - mean[:, None]
        return mean, off.mT @ off / p.shape[1]

    def density(self, tau: Tensor) -> Tensor:
        """(S,) the log density of scalars, not normalised."""
        return self.at(tau, 1).log.flatten(1).logsumexp(1)

    def at(self, tau: Tensor, draws: int) -> Points:
        """The posterior at scalars (S,), not normalised."""
        p, covariance = self.moments(tau)
        size = tau.abs()
        if self.scale_unknown:
            size = segment_end(p, self.signal.u * tau.sign()[:, None])
            rough = self._fit(tau, p, covariance, size, 1)
            best = rough.log.flatten(1).argmax(1, keepdim=True)
            size = rough.size.flatten(1).gather(1, best)[:, 0]
        found = self._fit(tau, p, covariance, size, draws)
        along = tau.new_tensor(max(self.signal.along, self.signal.noise))
        prior = self.typical.log_prior(along, self.signal.noise, tau)
        for piece in self.evidence:
            prior = prior + piece(tau)
        log = found.log + (prior - tau.abs().log())[:, None, None]
        log = log.nan_to_num(nan=-math.inf, neginf=-math.inf)  # nothing is to be had there
        return Points(log, found.weights, found.size, found.misfit)

    def _fit(self, tau: Tensor, p: Tensor, covariance: Tensor, size: Tensor, draws: int) -> Points:
        """The Gaussian over a simplex's weights, and over |t| if that is unknown."""
        spread = covariance + size.square()[:, None, None] * self.signal.u_covariance
        basis = _sum_zero(p)
        inner = basis.T @ spread @ basis
        root = torch.linalg.cholesky(inner + FLOOR * torch.eye(inner.shape[-1]).to(p))
        u = self.signal.u * tau.sign()[:, None]
        target = p if self.scale_unknown else p - size[:, None] * u
        columns = self.patches.directions.to(p).expand(len(tau), -1, -1, -1)  # (S, P, d, C)
        if self.scale_unknown:
            along = u[:, None, None].expand(-1, columns.shape[1], -1, -1)
            columns = torch.cat([along, columns], 2)
        rest = target[:, None] - self.patches.origin.to(p)
        r = _whiten(root, basis, rest[:, :, None])[:, :, 0]
        A = _whiten(root, basis, columns)
        mean, w_root, misfit, volume = _least_squares(A, r)
        top = p.new_tensor(LARGEST) if self.scale_unknown else None
        w, mass = draw_inside(mean, w_root, _uniform(draws, mean.shape[-1]).to(p), top)
        scale, w = (w[..., 0], w[..., 1:]) if self.scale_unknown else (size[:, None, None], w)
        log = mass + self._prior(w) - math.log(draws) + self._volume(scale)
        log = log + (volume - misfit / 2)[..., None]
        log = log - root.diagonal(dim1=-2, dim2=-1).log().sum(-1)[:, None, None]
        return Points(log, w, scale.expand(log.shape), misfit)

    def _volume(self, size: Tensor) -> Tensor:
        """Of labels at a distance ``|t|``; flat labels are as likely as the scale of logits is."""
        freedom = len(self.b) - 1 - int(self.scale_unknown)
        return freedom * size.log()

    def _prior(self, w: Tensor) -> Tensor:
        """(…) the log Dirichlet density of weights (…, d)."""
        alpha = self.patches.concentration.to(w)
        every = torch.cat([1 - w.sum(-1, keepdim=True), w], -1).clamp_min(FLOOR)
        constant = torch.lgamma(alpha.sum()) - torch.lgamma(alpha).sum()
        return constant + ((alpha - 1) * every.log()).sum(-1) - math.log(len(self.patches.origin))


def _least_squares(A: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean (…, d), root of the covariance, squared misfit and log volume of ``A w = r + noise``."""
    size = A.shape[-2]
    normal = A @ A.mT
    ridge = RIDGE * normal.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] + FLOOR
    covariance = torch.linalg.inv(normal + ridge * torch.eye(size).to(A))
    right = (A @ r[..., None])[..., 0]
    mean = (covariance @ right[..., None])[..., 0]
    root = torch.linalg.cholesky((covariance + covariance.mT) / 2) if size else covariance
    volume = root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + size / 2 * math.log(2 * math.pi)
    misfit = (r - (mean[..., None, :] @ A)[..., 0, :]).square().sum(-1)
    return mean, root, misfit, volume


def _whiten(root: Tensor, basis: Tensor, rows: Tensor) -> Tensor:
    """Rows (S, P, d, C) in units of their noise, (S, P, d, C − 1)."""
    flat = (rows @ basis).flatten(1, 2).mT
    white: Tensor = torch.linalg.solve_triangular(root, flat, upper=False)
    return white.mT.reshape(*rows.shape[:3], basis.shape[1])


def _sum_zero(like: Tensor) -> Tensor:
    """(C, C − 1) an orthonormal basis of the vectors that sum to zero."""
    classes = like.shape[-1]
    full = torch.cat([torch.ones(classes, 1), torch.eye(classes)[:, 1:]], 1).to(like)
    basis: Tensor = torch.linalg.qr(full).Q
    return basis[:, 1:]


def normal_draws(classes: int) -> Tensor:
    """Normal draws (M, C), the same in every run, of mean zero and covariance one exactly."""
    half = max(DRAWS // 2, classes)
    drawn = torch.randn(
        half, classes, generator=torch.Generator().manual_seed(0), dtype=torch.double
    )
    exact = torch.linalg.qr(drawn).Q * math.sqrt(half)
    return torch.cat([exact, -exact])


def _uniform(draws: int, size: int) -> Tensor:
    """Points (K, d) that fill the unit cube evenly, the same in every run."""
    ratio = 2.0  # the root of x^(d + 1) = x + 1, the golden ratio's kin
    for _ in range(ROOTS):
        ratio = (1 + ratio) ** (1 / (size + 1))
    steps = ratio ** -torch.arange(1, size + 1, dtype=torch.double)
    turns = torch.arange(draws, dtype=torch.double)[:, None] * steps
    return (0.5 + turns).remainder(1.0).clamp(EDGE, 1 - EDGE)
