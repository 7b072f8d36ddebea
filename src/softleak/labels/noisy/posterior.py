"""This module holds the probability of every scalar and label, given a noisy head gradient
(docs/method.md, Noise).

At a scalar τ the pseudo label ŷ(τ) of Eq. 4 is the true label plus noise of a known covariance. The
noise is that of ``u`` and, through the softmax, that of ``a``. The likelihood of τ is the mass that
this Gaussian puts on the simplices of the family.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from softleak.families import Simplices
from softleak.labels.noisy.features import Typical
from softleak.labels.noisy.gaussian import (
    GAUSSIAN,
    even_points,
    normal_draws,
    sum_zero_covariance,
    sum_zero_part,
    weights_given,
    without_last_weight,
)
from softleak.labels.noisy.signal import Signal
from softleak.labels.noisy.truncated import draw_inside
from softleak.labels.pseudo import LARGEST
from softleak.labels.scale import segment_end


@dataclass(frozen=True)
class PosteriorBlocks:
    """How much is computed together. More at once means fewer steps, but leaves the cache.

    Attributes:
        logits: entries of the logits' noise, of which moments are taken.
        covariances: entries of the covariances that labels are fitted with,
        scalars: for no more scalars than this, unless the logits of more fit.
    """

    logits: int = 2**17
    covariances: int = 2**19
    scalars: int = 48


BLOCKS = PosteriorBlocks()

LogLikelihood = Callable[[Tensor], Tensor]  # maps scalars τ (S,) to log likelihoods (S,)


@dataclass(frozen=True, eq=False)
class Points:
    """Labels at S scalars, with K draws in each of P simplices, and then in each of their faces.

    Attributes:
        log: (S, P, K) the logarithm of each label's weight.
        weights: (S, P, K, d) the weights of all corners but the first.
        size: (S, P, K) |t|, which differs from |τ| if the scale is unknown.
        misfit: (S, P) the squared distance of ŷ(τ) from the simplex's plane, in units of its noise.
        inside: (S, P, K) the squared distance of each label from the point of the plane that is
            nearest to ŷ(τ), in the same units. It is large if that point is no label.
    """

    log: Tensor
    weights: Tensor
    size: Tensor
    misfit: Tensor
    inside: Tensor

    def beside(self, faces: Points) -> Points:
        """Return these labels and those of faces, whose last weight is zero."""
        weights = torch.cat([self.weights, F.pad(faces.weights, (0, 1))], 1)
        log, size, misfit, inside = (
            torch.cat(both, 1)
            for both in (
                (self.log, faces.log), (self.size, faces.size),
                (self.misfit, faces.misfit), (self.inside, faces.inside),
            )
        )  # fmt: skip
        return Points(log, weights, size, misfit, inside)

    @classmethod
    def joined(cls, parts: Sequence[Points]) -> Points:
        """Return the labels of all parts, one after the other."""
        fields = zip(*((p.log, p.weights, p.size, p.misfit, p.inside) for p in parts), strict=True)
        return cls(*(torch.cat(field) for field in fields))


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
        parts = [self._moments(part) for part in torch.split(tau, self._logits_together)]
        if len(parts) == 1:
            return parts[0]
        mean, covariance = zip(*parts, strict=True)
        return torch.cat(mean), torch.cat(covariance)

    def _moments(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.addcdiv(self.b, self._logits, tau[:, None, None]).softmax(-1)
        mean = p.mean(1)
        off = p.sub_(mean[:, None])
        return mean, off.mT @ off / p.shape[1]

    def density(self, tau: Tensor) -> Tensor:
        """Return the unnormalised log posterior density (S,) of scalars τ (S,)."""
        return self.at(tau, 1).log.flatten(1).logsumexp(1)

    def at(self, tau: Tensor, draws: int) -> Points:
        """Return labels with their unnormalised weights at scalars τ (S,)."""
        fitted = min(BLOCKS.covariances // len(self.b) ** 2, BLOCKS.scalars)
        together = max(self._logits_together, fitted)
        return Points.joined([self._at(part, draws) for part in torch.split(tau, together)])

    @property
    def _logits_together(self) -> int:
        """Return the number of scalars whose noisy logits are held at once."""
        return max(BLOCKS.logits // self._logits.numel(), 1)

    @cached_property
    def _logits(self) -> Tensor:
        """Draws (M, C) of ``a``, with its noise."""
        return self.signal.a + normal_draws(len(self.b)).to(self.b) @ self.signal.a_root.T

    @cached_property
    def _corners(self) -> tuple[Tensor, Tensor]:
        """Return the distinct corners (Q, C) of all simplices, and which (P, d + 1) each has."""
        every = self.simplices.corners
        distinct, which = torch.unique(every.flatten(0, 1), dim=0, return_inverse=True)
        return distinct.to(self.b), which.view(every.shape[:2]).to(self.b.device)

    def _at(self, tau: Tensor, draws: int) -> Points:
        """Return what ``at`` does, for as many scalars as are looked at together."""
        p, covariance = self.moments(tau)
        inner = sum_zero_covariance(covariance)
        size = tau.abs()
        if self.scale_unknown:
            size = segment_end(p, self.signal.u * tau.sign()[:, None])
            rough = self._fit(tau, p, inner, size, 1)
            best = rough.log.flatten(1).argmax(1, keepdim=True)
            size = rough.size.flatten(1).gather(1, best)[:, 0]
        found = self._fit(tau, p, inner, size, draws)
        along = tau.new_tensor(max(self.signal.along, self.signal.noise))
        prior = self.typical.log_prior(along, self.signal.noise, tau)
        for piece in self.evidence:
            prior = prior + piece(tau)
        log = found.log + (prior - tau.abs().log())[:, None, None]
        log = log.nan_to_num(nan=-math.inf, neginf=-math.inf)  # An undefined label has no weight.
        return replace(found, log=log)

    @cached_property
    def _noise_of_u(self) -> tuple[Tensor, Tensor]:
        """Return the covariance of ``u`` and the floor of a label's, where entries sum to zero."""
        inner = sum_zero_covariance(self.signal.u_covariance)
        return inner, GAUSSIAN.floor * torch.eye(len(inner)).to(inner)

    def _fit(self, tau: Tensor, p: Tensor, noise: Tensor, size: Tensor, draws: int) -> Points:
        """Draw from the Gaussian over a simplex's weights, and over |t| if that is unknown.

        ``noise`` (S, C − 1, C − 1) is the covariance of ``p`` where entries sum to zero.
        """
        of_u, floor = self._noise_of_u
        spread = torch.addcmul(noise, size.square()[:, None, None], of_u)
        root = torch.linalg.cholesky(spread.add_(floor))
        u = self.signal.u * tau.sign()[:, None]
        target = p if self.scale_unknown else p - size[:, None] * u
        mean, w_root, misfit, volume = weights_given(*self._whitened(root, target, u))
        known = -root.diagonal(dim1=-2, dim2=-1).log().sum(-1)[:, None]
        found = self._inside(mean, w_root, misfit, volume + known, size, draws)
        if not self.simplices.faced:
            return found
        face, f_root, more, volume = without_last_weight(mean, w_root)
        return found.beside(self._inside(face, f_root, misfit + more, volume + known, size, draws))

    def _inside(
        self,
        mean: Tensor,
        root: Tensor,
        misfit: Tensor,
        volume: Tensor,
        size: Tensor,
        draws: int,
    ) -> Points:
        """Draw labels from the Gaussian weights (S, P, d) of all simplices, or of all faces."""
        top = size.new_tensor(LARGEST) if self.scale_unknown else None
        points = even_points(draws, mean.shape[-1]).to(mean)
        w, mass, inside = draw_inside(mean, root, points, top)
        scale, w = (w[..., 0], w[..., 1:]) if self.scale_unknown else (size[:, None, None], w)
        log = mass + self._prior(w) - math.log(draws) + self._volume(scale)
        log = log + (volume - misfit / 2)[..., None]
        return Points(log, w, scale.expand(log.shape), misfit, inside)

    def _whitened(self, root: Tensor, target: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return every simplex's directions (S, P, d, n) and the target (S, P, n), seen from its
        first corner, in units of the noise with this root (S, C − 1, C − 1).

        Simplices share corners, and each is whitened once. With more classes than vectors, these
        are seen in a basis of their own, since only their lengths and angles count.
        """
        corners, which = self._corners
        rows = torch.cat([target[:, None], u[:, None], corners.expand(len(u), -1, -1)], 1)
        white = torch.linalg.solve_triangular(root, sum_zero_part(rows).mT, upper=False)
        if white.shape[-1] < white.shape[-2]:
            white = torch.linalg.qr(white, mode="r").R
        white = white.mT.contiguous()
        target, u, corners = white[:, :1], white[:, 1:2], white[:, 2:]
        first = corners[:, which[:, 0]]
        columns = corners[:, which[:, 1:]] - first[:, :, None]
        if self.scale_unknown:
            along = u[:, None].expand(-1, len(which), -1, -1)
            columns = torch.cat([along, columns], 2)
        return columns, target - first

    def _volume(self, size: Tensor) -> Tensor:
        """Return the logarithm of the volume element of labels at a distance ``|t|`` from ``p``."""
        freedom = len(self.b) - 1 - int(self.scale_unknown)
        return freedom * size.log()

    def _prior(self, w: Tensor) -> Tensor:
        """Return the log density (…) of weights (…, d): Dirichlet, all simplices equally likely."""
        alpha = self.simplices.concentration[: w.shape[-1] + 1].to(w)
        every = torch.cat([1 - w.sum(-1, keepdim=True), w], -1).clamp_min(GAUSSIAN.floor)
        constant = torch.lgamma(alpha.sum()) - torch.lgamma(alpha).sum()
        count = len(self.simplices.origin)
        return constant + ((alpha - 1) * every.log()).sum(-1) - math.log(count)
