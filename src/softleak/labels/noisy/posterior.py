"""How probable labels and scalars are behind noise.

Where ``u`` is well known the posterior is Gaussian over the weights of a simplex. Else a label
``y`` fixes ``u = (p − y)/|p − y|``, ``u`` fixes the logits of ``p``, and fixed-point steps close
this loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.special import log_ndtr, ndtri

from softleak.core.families import Simplices
from softleak.labels.curve import LARGEST, segment_end
from softleak.labels.noisy.spectrum import Signal, Typical

# The tail of a normal distribution below is zero in float64: draws are put at the nearer bound.
LOWEST_QUANTILE = -37.0


def draw_inside(
    mean: Tensor, root: Tensor, uniform: Tensor, top: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw K points from N(mean, root rootᵀ), restricted to weights that fit in a simplex.

    Means are (…, d), their lower triangular roots (…, d, d), and ``uniform`` (K, d) points of the
    open unit cube. The first entry of a draw is at most ``top`` (), if that is given, and then is
    not a weight of the simplex. Returns the draws (…, K, d), with no entry negative and a sum of at
    most one, the logarithms (…, K) of the masses that weight them, and their squared distances
    (…, K) from the mean, in units of the covariance.
    """
    shape = (*mean.shape[:-1], len(uniform))
    z, mass, room = mean.new_zeros(*shape, 0), mean.new_zeros(shape), mean.new_ones(shape)
    found: list[Tensor] = []
    for i in range(mean.shape[-1]):
        centre = mean[..., None, i] + (z * root[..., None, i, :i]).sum(-1)
        size = root[..., None, i, i]
        outside = top is not None and i == 0
        high = top.expand(shape) if top is not None and outside else room
        part, drawn = _truncated(-centre / size, (high - centre) / size, uniform[:, i])
        weight = (centre + size * drawn).clamp_min(0.0).minimum(high)
        mass = mass + part
        found.append(weight)
        z = torch.cat([z, drawn[..., None]], -1)
        room = room if outside else (room - weight).clamp_min(0.0)
    return (torch.stack(found, -1) if found else z), mass, z.square().sum(-1)


def _truncated(low: Tensor, high: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log mass of a standard normal variable between two bounds, and a draw."""
    mirrored = low > 0
    left, right = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
    top, bottom = log_ndtr(right), log_ndtr(left)
    mass = top + torch.log1p(-(bottom - top).clamp_max(-1e-15).exp())
    level = torch.logaddexp(bottom, mass + uniform.log())
    drawn = torch.where(right > LOWEST_QUANTILE, ndtri(level.exp()), right).clamp(left, right)
    return mass, torch.where(mirrored, -drawn, drawn)


GAUSSIAN_DRAWS = 64  # the number of draws of the logits' noise, at least
GAUSSIAN_FLOOR = 1e-14  # the variance that float32 leaves in any entry of a label
GAUSSIAN_ROOT_STEPS = 40  # fixed-point steps to the root on which evenly spread points rest
GAUSSIAN_MARGIN = 1e-6  # from the faces of the unit cube, where a normal variable is infinite
GAUSSIAN_RIDGE = 1e-12  # the relative ridge that fixes a weight which the equations leave open


def weights_given(A: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solve ``wᵀ A = r + noise`` for weights (…, d), with A (…, d, n) and noise of unit variance.

    Returns the mean (…, d) of the weights, a lower triangular root (…, d, d) of their covariance,
    the squared misfit (…) at the mean, and the logarithm (…) of ``∫ exp(−(w − mean)²/2) dw``.
    """
    normal = A @ A.mT
    ridge = GAUSSIAN_RIDGE * _trace(normal) + GAUSSIAN_FLOOR
    covariance = torch.linalg.inv(normal + ridge * torch.eye(A.shape[-2]).to(A))
    mean = (covariance @ (A @ r[..., None]))[..., 0]
    root, volume = _root((covariance + covariance.mT) / 2)
    misfit = (r - (A.mT @ mean[..., None])[..., 0]).square().sum(-1)
    return mean, root, misfit, volume


def without_last_weight(mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what ``weights_given`` does for the other weights, if the last one is zero."""
    covariance = root @ root.mT
    variance = covariance[..., -1, -1].clamp_min(GAUSSIAN_FLOOR**2)
    slope = covariance[..., :-1, -1] / variance[..., None]
    inner = covariance[..., :-1, :-1] - slope[..., None] * covariance[..., -1:, :-1]
    # Rounding may leave a determined weight without any variance.
    least = GAUSSIAN_RIDGE * _trace(covariance)
    kept, volume = _root(inner + least * torch.eye(inner.shape[-1]).to(root))
    last = mean[..., -1]
    return mean[..., :-1] - slope * last[..., None], kept, last.square() / variance, volume


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]


def _root(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return a lower triangular root, and the logarithm (…) of its Gaussian's integral."""
    size = covariance.shape[-1]
    root = torch.linalg.cholesky(covariance) if size else covariance
    volume = root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + size / 2 * math.log(2 * math.pi)
    return root, volume


def sum_zero_part(rows: Tensor) -> Tensor:
    """Return coordinates (…, C − 1) of rows (…, C) in a basis of vectors that sum to zero."""
    length = math.sqrt(rows.shape[-1])
    along = (rows[..., :1] * length - rows.sum(-1, keepdim=True)) / (length * (length - 1))
    return rows[..., 1:] + along


def sum_zero_covariance(spread: Tensor) -> Tensor:
    """Return covariances (…, C, C) in the basis of ``sum_zero_part``, as (…, C − 1, C − 1)."""
    return sum_zero_part(sum_zero_part(spread).mT)


def normal_draws(classes: int) -> Tensor:
    """Return the same normal draws (M, C) every time, of mean zero and covariance one exactly."""
    half = max(GAUSSIAN_DRAWS // 2, classes)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(half, classes, generator=generator, dtype=torch.double)
    exact = torch.linalg.qr(drawn).Q * math.sqrt(half)
    return torch.cat([exact, -exact])


def even_points(count: int, size: int) -> Tensor:
    """Return points (K, d) that fill the unit cube evenly, the same in every run."""
    ratio = 2.0
    for _ in range(GAUSSIAN_ROOT_STEPS):
        ratio = (1 + ratio) ** (1 / (size + 1))
    steps = ratio ** -torch.arange(1, size + 1, dtype=torch.double)
    turns = torch.arange(count, dtype=torch.double)[:, None] * steps
    return (0.5 + turns).remainder(1.0).clamp(GAUSSIAN_MARGIN, 1 - GAUSSIAN_MARGIN)


# How much is computed together. More at once means fewer steps, but leaves the cache.
TOGETHER_LOGITS = 2**17  # entries of the logits' noise, of which moments are taken
TOGETHER_COVARIANCES = 2**19  # entries of the covariances that labels are fitted with,
TOGETHER_SCALARS = 48  # for no more scalars than this, unless the logits of more fit


LogLikelihood = Callable[[Tensor], Tensor]  # maps scalars τ (S,) to log likelihoods (S,)


@dataclass(frozen=True, eq=False)
class Points:
    """Labels at S scalars, with K draws in each of P simplices, and then in each of their faces."""

    log: Tensor  # (S, P, K) the logarithm of each label's weight
    weights: Tensor  # (S, P, K, d) the weights of all corners but the first
    size: Tensor  # (S, P, K) |t|, which differs from |τ| if the scale is unknown
    misfit: Tensor  # (S, P) the squared distance of ŷ(τ) from the simplex's plane, in its noise
    # (S, P, K) the squared distance of each label from the point of the plane that is nearest to
    # ŷ(τ), in the same units. It is large if that point is no label.
    inside: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Points], dim: int = 0) -> Points:
        """Return the labels of all parts: one scalar (0) or simplex (1) after the other."""
        fields = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(torch.cat(field, dim) for field in fields))


@dataclass(frozen=True, eq=False)
class Posterior:
    """The posterior of one share's label, as a function of τ."""

    signal: Signal  # what noise leaves of the head's gradient
    b: Tensor  # (C,) the head's bias
    simplices: Simplices  # the labels that are possible
    scale_unknown: bool  # whether the share may be the gradient times any positive factor
    typical: Typical  # the prior of features
    evidence: tuple[LogLikelihood, ...] = ()  # the log likelihoods of the gradients of other layers

    def moments(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean (S, C) and covariance (S, C, C) of ``p`` over the noise of ``a``."""
        means, covariances = [], []
        for part in torch.split(tau, self._logits_together):
            p = torch.addcdiv(self.b, self._logits, part[:, None, None]).softmax(-1)
            mean = p.mean(1)
            off = p.sub_(mean[:, None])
            means.append(mean)
            covariances.append(off.mT @ off / p.shape[1])
        return torch.cat(means), torch.cat(covariances)

    def density(self, tau: Tensor) -> Tensor:
        """Return the unnormalised log posterior density (S,) of scalars τ (S,)."""
        return self.at(tau, 1).log.flatten(1).logsumexp(1)

    def at(self, tau: Tensor, draws: int) -> Points:
        """Return labels with their unnormalised weights at scalars τ (S,)."""
        fitted = min(TOGETHER_COVARIANCES // len(self.b) ** 2, TOGETHER_SCALARS)
        together = max(self._logits_together, fitted)
        return Points.joined([self._at(part, draws) for part in torch.split(tau, together)])

    @property
    def _logits_together(self) -> int:
        """Return the number of scalars whose noisy logits are held at once."""
        return max(TOGETHER_LOGITS // self._logits.numel(), 1)

    @cached_property
    def _logits(self) -> Tensor:
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
        return inner, GAUSSIAN_FLOOR * torch.eye(len(inner)).to(inner)

    def _fit(self, tau: Tensor, p: Tensor, noise: Tensor, size: Tensor, draws: int) -> Points:
        """Draw from the Gaussian over a simplex's weights, and over |t| if that is unknown."""
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
        faces = self._inside(face, f_root, misfit + more, volume + known, size, draws)
        faces = replace(faces, weights=F.pad(faces.weights, (0, 1)))  # the last weight is zero
        return Points.joined([found, faces], 1)

    def _inside(
        self, mean: Tensor, root: Tensor, misfit: Tensor, volume: Tensor, size: Tensor, draws: int
    ) -> Points:
        """Draw labels from the Gaussian weights (S, P, d) of all simplices, or of all faces."""
        top = size.new_tensor(LARGEST) if self.scale_unknown else None
        points = even_points(draws, mean.shape[-1]).to(mean)
        w, mass, inside = draw_inside(mean, root, points, top)
        scale, w = (w[..., 0], w[..., 1:]) if self.scale_unknown else (size[:, None, None], w)
        freedom = len(self.b) - 1 - int(self.scale_unknown)
        element = freedom * scale.log()  # of volume, for labels at a distance ``|t|`` from ``p``
        log = mass + self._prior(w) - math.log(draws) + element
        log = log + (volume - misfit / 2)[..., None]
        return Points(log, w, scale.expand(log.shape), misfit, inside)

    def _whitened(self, root: Tensor, target: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return every simplex's directions (S, P, d, n) and the target (S, P, n).

        They are seen from its first corner, in units of the noise with this root (S, C − 1, C − 1).
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

    def _prior(self, w: Tensor) -> Tensor:
        """Return the log density (…) of weights (…, d): Dirichlet, all simplices equally likely."""
        alpha = self.simplices.concentration[: w.shape[-1] + 1].to(w)
        every = torch.cat([1 - w.sum(-1, keepdim=True), w], -1).clamp_min(GAUSSIAN_FLOOR)
        constant = torch.lgamma(alpha.sum()) - torch.lgamma(alpha).sum()
        count = len(self.simplices.origin)
        return constant + ((alpha - 1) * every.log()).sum(-1) - math.log(count)


PROBABILITIES_STEPS = 4  # fixed-point steps, each extrapolated from the one before
PROBABILITIES_SETTLED = 1e-4  # the largest change, as a length, that the last of them may leave
PROBABILITIES_DAMPED = 15  # damped steps instead, where it leaves more
PROBABILITIES_FARTHEST = 3.0  # how many steps an extrapolation may go back or ahead
PROBABILITIES_GRID = 128  # scalars at which the evidence of other layers is evaluated
PROBABILITIES_SMALLEST = 1e-12  # the smallest ``|p − y|``, and the smallest scalar
PROBABILITIES_TOGETHER = 2**17  # probabilities handled together: as many as a cache holds
PROBABILITIES_DOUBLE = 2**22  # with more, all steps but the last are taken in float32


@dataclass(frozen=True, eq=False)
class NoisyLogits:
    """M draws of what is open: noise of logits (M, C), and normal lengths of features (M,)."""

    omega: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, posterior: Posterior, seed: int) -> NoisyLogits:
        """Return draws of the noise, with normal quantiles in random order as lengths."""
        omega = normal_draws(len(posterior.b)).to(posterior.b) @ posterior.signal.a_root.T
        levels = (torch.arange(len(omega), dtype=torch.double) + 0.5) / len(omega)
        order = torch.randperm(len(omega), generator=torch.Generator().manual_seed(seed))
        return cls(omega, torch.special.ndtri(levels)[order].to(posterior.b))

    def part(self, first: int, labels: int, each: int) -> NoisyLogits:
        """Return draws (labels, each, C) and (labels, each), different ones for every label."""
        at = torch.arange(first, first + labels * each).view(labels, each) % len(self.lengths)
        return NoisyLogits(self.omega[at], self.lengths[at])


def weigh(
    posterior: Posterior, labels: Tensor, noise: NoisyLogits, each: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log likelihoods, scalars τ and sizes |t|, all (R, m), with m draws for each label."""
    signal, typical = posterior.signal, posterior.typical
    dtype = torch.double if labels.numel() * each <= PROBABILITIES_DOUBLE else torch.float
    rows = max(PROBABILITIES_TOGETHER // (each * labels.shape[1]), 1)
    parts, first = [], 0
    for some in torch.split(labels[:, None], rows):
        own = noise.part(first, len(some), each)
        seen = NoisyLogits(own.omega.to(dtype), own.lengths.to(dtype))
        p = agreeing_probabilities(posterior, some.to(dtype), seen)
        u, size, tau = _direction(posterior, p.double() - some, own.lengths)
        along = u @ signal.mean
        log = ((u @ signal.gram) * u).sum(-1) / (2 * signal.noise**2)
        if posterior.scale_unknown:
            log = torch.where(along > 0, log, -math.inf)
        else:
            prior = along.clamp_min(signal.noise), signal.noise, tau[..., 0]
            log = log + typical.log_prior(*prior)
        parts.append((log, tau[..., 0], size[..., 0]))
        first += len(some) * each
    log, tau, size = (torch.cat(field) for field in zip(*parts, strict=True))
    return log + _evidence(posterior, tau), tau, size


def agreeing_probabilities(posterior: Posterior, labels: Tensor, noise: NoisyLogits) -> Tensor:
    """Return the probabilities (R, m, C) that agree with labels (R, 1, C) and noise (R, m, …).

    A step goes to where the one before and this one together would leave the least change
    (Anderson's acceleration with a memory of one). If that does not settle, damped steps from the
    start are taken instead.
    """
    step = partial(_step, posterior, labels, noise)
    start = torch.full_like(noise.omega, 1 / labels.shape[-1])
    p, change = start, step(start) - start
    ahead = change / 2
    for _ in range(PROBABILITIES_STEPS):
        p = (p + ahead).clamp_min_(0.0)
        before, change = change, step(p) - p
        bend = change - before
        size: Tensor = torch.linalg.vector_norm(bend, dim=-1, keepdim=True)
        size = size.clamp_min_(PROBABILITIES_SMALLEST).square_()
        back = (change * bend).sum(-1, keepdim=True) / size
        back = back.clamp_(-PROBABILITIES_FARTHEST, PROBABILITIES_FARTHEST)
        ahead = torch.addcmul(change, bend.add_(ahead), back, value=-1)
    p = (p + ahead).clamp_min_(0.0)
    restless = (change.norm(dim=-1) > PROBABILITIES_SETTLED).nonzero(as_tuple=True)
    if len(restless[0]):
        rest = NoisyLogits(noise.omega[restless], noise.lengths[restless])
        own, damped = labels.expand_as(noise.omega)[restless], start[restless]
        for _ in range(PROBABILITIES_DAMPED):
            damped = _step(posterior, own, rest, damped).add_(damped).div_(2)
        p[restless] = damped
    return p


def _step(posterior: Posterior, labels: Tensor, noise: NoisyLogits, p: Tensor) -> Tensor:
    """Return the probabilities that the logits of ``p`` give, of labels (…, C) with noise."""
    u, _, tau = _direction(posterior, p - labels, noise.lengths)
    response, b = posterior.signal.response.T.to(labels), posterior.b.to(labels)
    return torch.softmax((u @ response).add_(noise.omega).div_(tau).add_(b), -1)


def _direction(
    posterior: Posterior, delta: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``u`` (…, C), |t| (…, 1) and τ (…, 1) for ``delta = p − y`` (…, C)."""
    size = delta.norm(dim=-1, keepdim=True).clamp_min(PROBABILITIES_SMALLEST)
    u = delta / size
    if not posterior.scale_unknown:
        return u, size, size
    along = (u @ posterior.signal.mean.to(u.dtype)).clamp_min(PROBABILITIES_SMALLEST)
    length = (posterior.typical.length + posterior.typical.doubt * lengths).exp()
    return u, size, (along / length)[..., None]


def _evidence(posterior: Posterior, tau: Tensor) -> Tensor:
    """Return the log likelihood of every τ, interpolated between the scalars of a grid."""
    if not posterior.evidence:
        return torch.zeros_like(tau)
    count = PROBABILITIES_GRID
    low, high = float(tau.min()), float(tau.max()) + PROBABILITIES_SMALLEST
    grid = torch.linspace(low, high, count).to(tau)
    known = torch.stack([piece(grid) for piece in posterior.evidence]).sum(0)
    right = torch.searchsorted(grid, tau.contiguous()).clamp(1, count - 1)
    part = (tau - grid[right - 1]) / (grid[right] - grid[right - 1])
    return torch.lerp(known[right - 1], known[right], part)
