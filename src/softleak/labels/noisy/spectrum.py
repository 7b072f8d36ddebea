"""The noise of a head gradient, and its rank-one part: ``u``, ``a = σ W v``, and their errors.

Features have a usual direction, in which the gradient counts in full. Across that direction it
counts as far as it stands out of the noise. With little noise the result is the leading singular
pair; with much noise it is the gradient along the usual direction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.core.errors import ModelError
from softleak.core.forward import (
    forward_batch,
    forward_one,
    random_input,
    recorded_inputs,
    row_of_logits,
    watched,
)
from softleak.core.head import Head
from softleak.core.input_spec import Inputs
from softleak.core.subject import Subject

FEATURES_INPUTS = 16  # the number of random inputs that the model is run on
FEATURES_DOUBT = 0.5  # standard deviation of log length: real inputs against random ones
FEATURES_OPPOSED = math.log(1e-3)  # the log prior of a feature that points away from the usual ones
FEATURES_SAME = 1e-3  # relative: a feature counts as the same in a batch and alone


@dataclass(frozen=True, eq=False)
class Typical:
    """The usual direction of a model's features, and their usual length along it."""

    direction: Tensor  # (I,) the usual direction, a unit vector
    across: float = 1.0  # the usual length across that direction, relative to the length along it
    length: float = 0.0  # the mean logarithm of the length along it
    doubt: float = math.inf  # its standard deviation; infinite if every length is equally likely

    def log_prior(self, along: Tensor, error: float, tau: Tensor) -> Tensor:
        """Return the log density (S,) of scalars τ (S,), by d log τ, of lengths ``along / τ``."""
        if math.isinf(self.doubt):
            return torch.zeros_like(tau)
        variance = self.doubt**2 + (error / along).square()
        far = along.log() - tau.abs().log() - self.length
        log = -(far.square() / variance + variance.log()) / 2
        return torch.where(tau > 0, log, log + FEATURES_OPPOSED)

    @classmethod
    def unknown(cls, head: Head) -> Typical:
        """Assume only that entries tend to have one sign, as an activation leaves them."""
        inputs = head.W.shape[1]
        return cls(torch.full((inputs,), inputs**-0.5, dtype=torch.double, device=head.W.device))

    @classmethod
    def of(cls, subject: Subject) -> Typical:
        """Return what a model makes of noise, fine and coarse; unknown if it cannot be run."""
        head = subject.head
        features = subject.once(features_of_noise)
        if not len(features):
            return cls.unknown(head)
        mean = features.mean(0)
        along = features @ mean / mean.norm()
        if not float(mean.norm()) > 0 or not bool((along > 0).all()):
            return cls.unknown(head)
        across = float((features.square().sum(-1) / along.square() - 1).clamp_min(0).mean())
        doubt = math.hypot(FEATURES_DOUBT, float(along.log().std()))
        return cls(mean / mean.norm(), math.sqrt(across), float(along.log().mean()), doubt)


def features_of_noise(subject: Subject) -> Tensor:
    """Return the features (n, I), in float64, of random inputs; none if no input is known."""
    shape = subject.input_shape
    if shape is None:
        return torch.zeros(0, subject.head.W.shape[1], dtype=torch.double)
    generator = torch.Generator().manual_seed(0)
    drawn = [random_input(shape, index, generator) for index in range(FEATURES_INPUTS)]
    return features_of(subject, drawn)


def features_of(subject: Subject, inputs: Sequence[Inputs]) -> Tensor:
    """Return the features (n, I), in float64, that the model makes of these inputs."""
    model, head = subject.model, subject.head
    devices = [head.W.device] if head.W.is_cuda else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        together = _features_together(model, head, inputs)
        if together is not None:
            last = _feature_alone(model, head, inputs[-1])
            if float((together[-1] - last).norm()) <= FEATURES_SAME * float(last.norm()):
                return together
        return torch.stack([_feature_alone(model, head, one) for one in inputs])


def _feature_alone(model: nn.Module, head: Head, x: Inputs) -> Tensor:
    """Return the feature (I,) of one input, in float64."""
    # An input may be tried with and without a batch dimension: only the last feature counts.
    entered: list[tuple[Tensor, Tensor]] = []
    with watched(
        {head.name: model.get_submodule(head.name)},
        after=lambda _, given, output: entered.append((given[0].detach(), output.detach())),
    ):
        logits, _ = forward_one(model, x)
    return row_of_logits(*entered[-1], logits)[0][0].double()


def _features_together(model: nn.Module, head: Head, inputs: Sequence[Inputs]) -> Tensor | None:
    """Return the features (n, I) of one run on all inputs; None where that is not possible.

    A feature may depend on the others of its batch, as behind BatchNorm in train mode, so that the
    caller has to compare one of them with that of an input alone.
    """
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    if len(tensors) < len(inputs) or len({x.shape for x in tensors}) > 1:
        return None
    try:
        with recorded_inputs(model, head.name) as entered:
            forward_batch(model, torch.stack(tensors))
    except ModelError:
        return None
    features = entered[head.name][-1].detach()
    return features.double() if features.shape == (len(tensors), head.W.shape[1]) else None


SPECTRUM_EDGE = 1.5  # times the largest singular value of noise alone: that of a sample
SPECTRUM_UNSURE = 3.0  # standard errors by which the noise's variance may be underestimated
SPECTRUM_CLEAR = 1.1  # times the edge: a leading singular value that is not noise alone
SPECTRUM_EVEN = 3.0  # ratio of variances up to which two parts of the noise count as equally large
SPECTRUM_HOLES = 0.01  # part of entries rounded or pruned to zero, in rows and columns that are not
SPECTRUM_HEAVY = 4.2  # kurtosis of tails like Laplace's, which has 6; the normal one has 3
SPECTRUM_FAR = 2.0  # standard deviations at which heavy tails are cut off
SPECTRUM_REPAIRED = 1e-3  # part of a row that may be left unexplained when it is repaired


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The noise of a head gradient ``G`` (C, I), and what stands out of it."""

    noise: float  # the standard deviation of the noise on one entry
    samples: int  # the number of singular values above the noise, at least one
    even: bool  # whether it is equally large everywhere: independent noise is, pruning is not
    heavy: bool  # whether the noise has tails like those of Laplace's distribution
    clear: bool  # whether the leading singular pair stands out of the noise

    @classmethod
    def of(cls, G: Tensor, balanced: bool = True) -> Spectrum:
        """Estimate the noise of ``G`` from its column sums and from all but its leading pair.

        Where residuals are not balanced, the sums over columns are not noise alone, and do not
        count.
        """
        classes, inputs = G.shape
        sums = G.sum(0) * balanced
        centred = G - sums / classes
        values = torch.linalg.svdvals(centred).square()
        beside = float(sums.square().sum()) / (classes * inputs)
        freedom = max(classes - 1 - balanced, 0) * (inputs - 1)
        rest = float(values[1:].sum())
        noise = (rest + beside * inputs) / max(freedom + inputs * balanced, 1)
        beside = beside if balanced else noise
        # With few columns the estimate is rough: the noise may be larger than it says.
        unsure = 1 + SPECTRUM_UNSURE * math.sqrt(2 / inputs)
        widest = (math.sqrt(inputs) + math.sqrt(classes - 1)) ** 2
        edge = SPECTRUM_EDGE**2 * unsure * beside * widest
        above = int((values > edge).sum())
        clear = float(values[0]) > edge * (SPECTRUM_CLEAR / SPECTRUM_EDGE) ** 2
        u = torch.linalg.eigh(centred @ centred.T).eigenvectors[:, -1]
        left = centred - torch.outer(u, u @ centred)  # without the leading rank-one part
        square = left.square().mean().square().clamp_min(SIGNAL_SMALLEST)
        heavy = float(left.pow(4).mean() / square) > SPECTRUM_HEAVY  # the kurtosis
        if holes(G) > SPECTRUM_HOLES:
            return cls(math.sqrt(noise), 1, False, heavy, clear)
        even = freedom == 0 or beside / SPECTRUM_EVEN <= rest / freedom <= beside * SPECTRUM_EVEN
        return cls(math.sqrt(noise), max(above, 1), even, heavy, clear)

    def light(self, G: Tensor, usual: Tensor) -> tuple[Tensor, float]:
        """Return ``G`` and its noise, heavy tails cut off across the ``usual`` direction (I,)."""
        if self.clear or not self.heavy:
            return G, self.noise
        kept, far = torch.outer(G @ usual, usual), SPECTRUM_FAR * self.noise
        inside = 1 - math.exp(-math.sqrt(2) * SPECTRUM_FAR)  # Laplace's mass within the cut
        near = kept + (G - kept).clamp(-far, far) / inside
        return near, Spectrum.of(near).noise


def without_noisy_row(G: Tensor) -> tuple[Tensor, int] | None:
    """Return ``G`` (C, I) with its only noisy row repaired, and the index of that row.

    The row is replaced by minus the sum of the others. With noise ``n`` on row r the columns sum to
    ``n``. Across that direction ``G`` is clean and gives ``u``. Along it, ``G`` without its part in
    ``u`` is ``e_r − u_r u``, which identifies r. The answer is None if no single row is noisy.
    """
    noise = G.sum(0)
    size = float(noise @ noise)
    if size == 0:
        return None
    along = G @ noise / size
    across = G - torch.outer(along, noise)
    if not float(across.norm()) > SPECTRUM_REPAIRED * float(G.norm()):
        return None  # Nothing is left of the gradient without the noise.
    u = torch.linalg.eigh(across @ across.T).eigenvectors[:, -1]
    expected = torch.eye(len(u), dtype=u.dtype, device=u.device) - torch.outer(u, u)
    left = along - u * (u @ along)
    far = (expected - left[:, None]).norm(dim=0)
    row = int(far.argmin())
    found = float(far[row]) <= SPECTRUM_REPAIRED * max(1.0, float(left.norm()))
    repaired = G.clone()
    repaired[row] -= noise
    empty = float((G[row] == 0).double().mean())
    pruned = holes(repaired) > SPECTRUM_HOLES or empty > SPECTRUM_HOLES
    if not found or pruned or int(across.any(1).sum()) <= 2:
        return None
    return repaired, row


def holes(G: Tensor) -> float:
    """Return the part of entries that are zero, in rows and columns that are not."""
    seen = G != 0
    inner = seen[seen.any(1)][:, seen.any(0)]
    return 1 - float(inner.double().mean()) if inner.numel() else 0.0


SIGNAL_ROUNDS = 4  # fixed-point steps for the part of the gradient that stands out of the noise
SIGNAL_DRAWS = 4096  # of the direction ``u``, which give its mean and covariance
SIGNAL_ACCEPTED = 16  # one draw in as many has to lie on the sphere, or all of it is drawn from
SIGNAL_SMALLEST = 1e-300  # the smallest divisor


@dataclass(frozen=True, eq=False)
class Signal:
    """What noise leaves of the factors of ``G = σ u vᵀ``."""

    u: Tensor  # (C,) the mean of the unit vector ``u``, shorter than one if ``u`` is uncertain
    u_covariance: Tensor  # (C, C) the covariance of ``u``
    x: Tensor  # (I,) the estimate of ``σ v``
    x_variance: float  # the variance of each entry of ``x``
    a: Tensor  # (C,) the estimate of ``a = σ W v``
    a_root: Tensor  # (C, C) a root of its covariance
    noise: float  # the standard deviation s of the noise on an entry of the gradient
    along: float  # the length of ``σ v`` in the usual direction of features
    mean: Tensor  # (C,) the gradient ``G`` in that direction
    gram: Tensor  # (C, C) the matrix K: the density of ``u`` is that of ``exp(uᵀ K u / 2s²)``
    response: Tensor  # (C, C) the matrix for which ``a = response u``

    @property
    def known(self) -> float:
        """How well ``u`` is known: the squared length of its mean, one if it is certain."""
        return float(self.u.square().sum())

    @property
    def sigma(self) -> float:
        return float(self.x.norm())

    @classmethod
    def of(
        cls, head: Head, G: Tensor, noise: float, typical: Typical, balanced: bool = True
    ) -> Signal:
        """Separate the signal in ``G`` (C, I), float64, from noise of this standard deviation."""
        usual = typical.direction
        centred = G - G.mean(0) * balanced
        mean = centred @ usual
        level = torch.outer(mean, mean)
        rest = centred @ centred.T - level
        part = 1.0
        for _ in range(SIGNAL_ROUNDS):
            values, vectors = torch.linalg.eigh(level + part * rest)
            u = vectors[:, -1]
            across = max(
                _spike(u @ rest @ u, noise, *G.shape),
                typical.across**2 * max(float(u @ level @ u) - noise**2, 0.0),
            )
            part = across / max(across + G.shape[1] * noise**2, SIGNAL_SMALLEST)
        u, covariance = _direction(values, vectors, noise)
        u = u if float(u @ mean) > 0 else -u
        x = part * (u @ centred) + (1 - part) * (u @ mean) * usual
        W = head.W.double()
        flat = W @ usual
        spread = part * (W @ W.T) + (1 - part) * torch.outer(flat, flat)
        return cls(
            u, covariance, x, part * noise**2, W @ x, noise * _root(spread), noise,
            float(u @ mean), mean, level + part * rest,
            part * (W @ centred.T) + (1 - part) * torch.outer(flat, mean),
        )  # fmt: skip


def _spike(energy: Tensor, noise: float, classes: int, inputs: int) -> float:
    """Return the energy q that is seen as ``(q + I s²)(q + C s²)/q``, or zero if noise hides it."""
    wide, narrow = inputs * noise**2, (classes - 1) * noise**2
    half = (float(energy) - wide - narrow) / 2
    if half**2 <= wide * narrow or half <= 0:
        return 0.0
    return half + math.sqrt(half**2 - wide * narrow)


def _direction(values: Tensor, vectors: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Return mean (C,) and covariance (C, C) of ``u``, of density ``exp(uᵀ K u / 2s²)``."""
    classes = len(values)
    spread = (noise**2 / (values[-1] - values[:-1]).clamp_min(SIGNAL_SMALLEST)).sqrt()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(SIGNAL_DRAWS, classes, generator=generator, dtype=torch.double).to(values)
    drawn[:, 0] = 0.0
    side = drawn[:, :-1] * spread
    inside = 1 - side.square().sum(-1)
    if int((inside > 0).sum()) >= SIGNAL_DRAWS // SIGNAL_ACCEPTED:
        side, inside = side[inside > 0], inside[inside > 0]
        u = torch.cat([side, inside.sqrt()[:, None]], 1)
        weight = inside.rsqrt()
    else:  # There is hardly any signal, so draws come from the whole sphere.
        u = drawn / drawn.norm(dim=-1, keepdim=True)
        u = u * u[:, -1:].sign()
        weight = torch.softmax(-(u[:, :-1] / spread).square().sum(-1) / 2, 0)
    weight = (weight / weight.sum())[:, None]
    along = (weight * u)[:, -1].sum()
    second = (weight * u.square()).sum(0)
    second[-1] -= along.square()
    return along * vectors[:, -1], vectors @ torch.diag(second) @ vectors.T


def _root(matrix: Tensor) -> Tensor:
    """Return a matrix R with ``R Rᵀ = matrix``, which is positive semidefinite."""
    values, vectors = torch.linalg.eigh(matrix)
    return torch.mul(vectors, values.clamp_min(0.0).sqrt())
