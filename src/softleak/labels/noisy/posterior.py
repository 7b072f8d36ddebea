"""This module holds the probability of every scalar and label, given a noisy head gradient
(docs/method.md, Noise).

At a scalar τ the pseudo label ŷ(τ) of Eq. 4 is the true label plus noise of a known covariance. The
noise is that of ``u`` and, through the softmax, that of ``a``. The likelihood of τ is the mass that
this Gaussian puts on the simplices of the family.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.families import Simplices
from softleak.labels.noisy.features import Typical
from softleak.labels.noisy.gaussian import (
    GAUSSIAN,
    even_points,
    normal_draws,
    sum_zero_basis,
    weights_given,
    whiten,
)
from softleak.labels.noisy.signal import Signal
from softleak.labels.noisy.truncated import draw_inside
from softleak.labels.pseudo import LARGEST
from softleak.labels.scale import segment_end

LogLikelihood = Callable[[Tensor], Tensor]  # maps scalars τ (S,) to log likelihoods (S,)


@dataclass(frozen=True, eq=False)
class Points:
    """Labels at S scalars, with K draws in each of P simplices.

    Attributes:
        log: (S, P, K) the logarithm of each label's weight.
        weights: (S, P, K, d) the weights of all corners but the first.
        size: (S, P, K) |t|, which differs from |τ| if the scale is unknown.
        misfit: (S, P) the squared distance of ŷ(τ) from the simplex's plane, in units of its noise.
    """

    log: Tensor
    weights: Tensor
    size: Tensor
    misfit: Tensor


@dataclass(frozen=True, eq=False)
class Posterior:
    """This is the posterior of one share's label, as a function of τ.

    Attributes:
        signal: what noise leaves of the head's gradient.
        b: (C,) the head's bias.
        simplices: the labels that are possible.
        scale_unknown: whether the share may be the gradient times any positive factor.
        typical: the prior of features.
        evidence: the log likelihoods of the gradients of other layers.
    """

    signal: Signal
    b: Tensor
    simplices: Simplices
    scale_unknown: bool
    typical: Typical
    evidence: tuple[LogLikelihood, ...] = ()

    def moments(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean (S, C) and covariance (S, C, C) of ``p`` over the noise of ``a``."""
        a = self.signal.a + normal_draws(len(self.b)).to(self.b) @ self.signal.a_root.T
        p = torch.softmax(a / tau[:, None, None] + self.b, -1)
        mean = p.mean(1)
        off = p - mean[:, None]
        return mean, off.mT @ off / p.shape[1]

    def density(self, tau: Tensor) -> Tensor:
        """Return the unnormalised log posterior density (S,) of scalars τ (S,)."""
        return self.at(tau, 1).log.flatten(1).logsumexp(1)

    def at(self, tau: Tensor, draws: int) -> Points:
        """Return labels with their unnormalised weights at scalars τ (S,)."""
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
        log = log.nan_to_num(nan=-math.inf, neginf=-math.inf)  # An undefined label has no weight.
        return Points(log, found.weights, found.size, found.misfit)

    def _fit(self, tau: Tensor, p: Tensor, covariance: Tensor, size: Tensor, draws: int) -> Points:
        """Draw from the Gaussian over a simplex's weights, and over |t| if that is unknown."""
        spread = covariance + size.square()[:, None, None] * self.signal.u_covariance
        basis = sum_zero_basis(p)
        inner = basis.T @ spread @ basis
        root = torch.linalg.cholesky(inner + GAUSSIAN.floor * torch.eye(inner.shape[-1]).to(p))
        u = self.signal.u * tau.sign()[:, None]
        target = p if self.scale_unknown else p - size[:, None] * u
        columns = self.simplices.directions.to(p).expand(len(tau), -1, -1, -1)  # (S, P, d, C)
        if self.scale_unknown:
            along = u[:, None, None].expand(-1, columns.shape[1], -1, -1)
            columns = torch.cat([along, columns], 2)
        rest = target[:, None] - self.simplices.origin.to(p)
        r = whiten(root, basis, rest[:, :, None])[:, :, 0]
        A = whiten(root, basis, columns)
        mean, w_root, misfit, volume = weights_given(A, r)
        top = p.new_tensor(LARGEST) if self.scale_unknown else None
        w, mass = draw_inside(mean, w_root, even_points(draws, mean.shape[-1]).to(p), top)
        scale, w = (w[..., 0], w[..., 1:]) if self.scale_unknown else (size[:, None, None], w)
        log = mass + self._prior(w) - math.log(draws) + self._volume(scale)
        log = log + (volume - misfit / 2)[..., None]
        log = log - root.diagonal(dim1=-2, dim2=-1).log().sum(-1)[:, None, None]
        return Points(log, w, scale.expand(log.shape), misfit)

    def _volume(self, size: Tensor) -> Tensor:
        """Return the logarithm of the volume element of labels at a distance ``|t|`` from ``p``."""
        freedom = len(self.b) - 1 - int(self.scale_unknown)
        return freedom * size.log()

    def _prior(self, w: Tensor) -> Tensor:
        """Return the log density (…) of weights (…, d): Dirichlet, all simplices equally likely."""
        alpha = self.simplices.concentration.to(w)
        every = torch.cat([1 - w.sum(-1, keepdim=True), w], -1).clamp_min(GAUSSIAN.floor)
        constant = torch.lgamma(alpha.sum()) - torch.lgamma(alpha).sum()
        count = len(self.simplices.origin)
        return constant + ((alpha - 1) * every.log()).sum(-1) - math.log(count)
