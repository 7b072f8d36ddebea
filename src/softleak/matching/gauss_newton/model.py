"""A network as Gauss–Newton needs it, and the normal equations of its shares."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from softleak.core.subject import Subject
from softleak.matching.gauss_newton.equations import BatchFunction, ShareEquations
from softleak.matching.gauss_newton.products import TangentProducts
from softleak.matching.problems import DifferentiableModel

IMAGE_AXES = 4  # of a batch of images (B, C, H, W)


def cosine_basis(length: int) -> Tensor:
    """Return the orthonormal cosines (frequency, place) on ``length`` places."""
    k = torch.arange(length, dtype=torch.double)
    basis = torch.cos(math.pi * (k + 0.5) * k[:, None] / length) * math.sqrt(2 / length)
    basis[0] /= math.sqrt(2)
    return basis


def frequencies(height: int, width: int) -> Tensor:
    """Return ``1 + |f|`` for each frequency (H, W) of an image."""
    f, g = (torch.arange(length, dtype=torch.double) for length in (height, width))
    return 1 + (f[:, None].square() + g.square()).sqrt()


def image_basis(height: int, width: int) -> Tensor:
    """Return the orthonormal cosines (HW, HW) of an image: one row for each frequency."""
    both = torch.einsum("ai,bj->abij", cosine_basis(height), cosine_basis(width))
    return both.reshape(height * width, -1)


def roughness(shape: tuple[int, ...], power: float) -> Tensor | None:
    """Return how much a change at each frequency (H, W) of a channel counts.

    It is ``(1 + |f|)^(2·power)``, divided by its mean. Natural images have amplitudes of about
    ``1/|f|``, so with a power of one all parts of an image are equally far away. There is None if
    a batch of this ``shape`` (B, …) does not hold images, or the power is zero.
    """
    if len(shape) != IMAGE_AXES or not power or shape[2] * shape[3] == 1:
        return None
    values = frequencies(*shape[2:]).pow(2 * power)
    return values / values.mean()


def roughness_metric(shape: tuple[int, ...], power: float) -> Tensor | None:
    """Return the matrix (HW, HW) with eigenvalues ``roughness``, and cosines as eigenvectors."""
    values = roughness(shape, power)
    if values is None:
        return None
    both = image_basis(*shape[2:])
    return both.T @ (both * values.reshape(-1, 1))


CONTRAST = 0.25  # the standard deviation of a pixel of range one, of images in general
COLOUR_CORRELATION = 0.9  # between the colours of a pixel


def image_precision(shape: tuple[int, ...]) -> Tensor:
    """Return the inverse covariance (n, n) of the n entries of an input of this shape.

    Neighbouring pixels are alike, and the colours of a pixel too: the amplitude of a cosine of
    frequency ``f`` is taken to be proportional to ``1/(1 + |f|)``, as in photographs. Inputs that
    are not images have independent entries.
    """
    if len(shape) != IMAGE_AXES - 1:
        entries = int(torch.Size(shape).numel())
        return torch.eye(entries, dtype=torch.double) / CONTRAST**2
    channels, height, width = shape
    power, basis = frequencies(height, width).pow(-2).reshape(-1, 1), image_basis(height, width)
    smooth = basis.T @ (basis * (power.mean() / power))
    alike = torch.full((channels, channels), COLOUR_CORRELATION, dtype=torch.double)
    alike.fill_diagonal_(1.0)
    whole = torch.kron(torch.linalg.inv(alike).contiguous(), smooth.contiguous())
    return whole / CONTRAST**2


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """``JᵀJ`` (n, n) and ``Jᵀr`` (n,) in float64, at one iterate."""

    matrix: Tensor  # ``JᵀJ``
    slope: Tensor  # ``Jᵀr``
    # How long a change of one channel is, (HW, HW), if the first unknowns are images; with None
    # every unknown is measured by its own entry of the diagonal.
    metric: Tensor | None = None
    pixels: int = 0  # how many unknowns are pixels

    @classmethod
    def of(cls, jacobian: Tensor, r: Tensor, blocks: int = 6) -> NormalEquations:
        """Multiply a transposed Jacobian (n, R) with itself, by half, and with residuals (R,)."""
        n = len(jacobian)
        matrix = jacobian.new_empty(n, n, dtype=torch.double)
        edges = [round(n * k / blocks) for k in range(blocks + 1)]
        for low, high in itertools.pairwise(edges):
            found = (jacobian[low:high] @ jacobian[:high].T).double()
            matrix[low:high, :high] = found
            matrix[:high, low:high] = found.T
        return cls(matrix, (jacobian @ r.to(jacobian.dtype)).double())

    def step(self, damping: float) -> tuple[Tensor, float] | None:
        """Return the damped step (n,) and the decrease of ``‖r‖²`` that it promises.

        ``(JᵀJ + μ M) s = Jᵀr`` with the lengths ``M``; the new iterate is ``z − s``. None means
        that the matrix is not positive definite at this damping.
        """
        damped = self._damped(damping)
        scale = damped.diagonal().rsqrt()
        factor, failed = torch.linalg.cholesky_ex(damped * scale[:, None] * scale)
        if int(failed):
            return None
        s = torch.cholesky_solve((self.slope * scale)[:, None], factor)[:, 0] * scale
        promised = float(2 * s @ self.slope - s @ (self.matrix @ s))
        return s, promised

    def _damped(self, damping: float) -> Tensor:
        diagonal = self.matrix.diagonal()
        lengths = damping * diagonal.clamp_min(float(diagonal.max()) * 1e-30)
        damped = self.matrix.clone()
        if self.metric is None:
            damped.diagonal().add_(lengths)
            return damped
        damped.diagonal()[self.pixels :].add_(lengths[self.pixels :])
        own, size = self.metric * lengths[: self.pixels].mean(), len(self.metric)
        for begin in range(0, self.pixels, size):
            damped[begin : begin + size, begin : begin + size] += own
        return damped


@dataclass(eq=False)
class NewtonModel:
    """A network in both precisions, for batches of one shape, with recorded products."""

    exact: BatchFunction  # the batch function in float64
    quick: BatchFunction  # the batch function in float32
    client: BatchFunction  # the batch function in the dtype in which clients compute
    memory: int  # the bytes that products and the Jacobian may take together
    _products: dict[torch.dtype, TangentProducts] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, subject: Subject, names: tuple[str, ...], shape: tuple[int, ...], memory: int
    ) -> NewtonModel:
        """Copy the model of a subject for batches of shape (B, …)."""

        def copied(dtype: torch.dtype) -> BatchFunction:
            model = DifferentiableModel.of(subject.model, subject.head, dtype)
            return BatchFunction(model, names, shape)

        own = next(iter(subject.parameters.values())).dtype
        exact, quick = copied(torch.float64), copied(torch.float32)
        client = {torch.float64: exact, torch.float32: quick}.get(own) or copied(own)
        return cls(exact, quick, client, memory)

    def products(self, dtype: torch.dtype) -> TangentProducts:
        """Return products with the Jacobian in float32 or float64."""
        if dtype not in self._products:
            function = self.quick if dtype is torch.float32 else self.exact
            self._products[dtype] = TangentProducts(function, self.memory // 4)
        return self._products[dtype]

    def kept(self) -> Tensor | None:
        """Return the indices of rows for which a Jacobian fits in memory; None means all."""
        sizes = list(self.exact.sizes.values())
        room = self.memory // 2 // (8 * self.exact.unknowns)
        if sum(sizes) <= room:
            return None
        fewer = range(2, max(sizes) + 1)
        most = 1 + bisect_right(fewer, room, key=lambda m: sum(min(size, m) for size in sizes))
        generator = torch.Generator().manual_seed(0)
        chosen, begin = [], 0
        for size in sizes:
            own = torch.arange(size)
            if size > most:
                own = torch.randperm(size, generator=generator)[:most].sort().values
            chosen.append(own + begin)
            begin += size
        return torch.cat(chosen)


@dataclass(eq=False)
class LinearisedShare:
    """Compute the normal equations of a share at an iterate, and hold one Jacobian at most."""

    model: NewtonModel  # the network
    equations: ShareEquations  # the equations of the share, in float64
    smoothness: float  # the power of the frequency by which changes of an image are damped
    _held: dict[torch.dtype, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, z: Tensor, r: Tensor, dtype: torch.dtype) -> NormalEquations:
        """Return the normal equations at ``z`` (n,) with residuals (R,), by products in a dtype."""
        weight, products = self.equations.weight, self.model.products(dtype)
        out = self._held.pop(dtype, None)
        self._held.clear()  # what another precision left behind
        if self._kept is None:
            jacobian, r = products.reduced(z, r, weight, out)
        else:
            jacobian, r = products.jacobian(z, weight, self._kept, out), r[self._kept]
        self._held[dtype] = jacobian
        pixels = self.model.exact.pixels
        return replace(NormalEquations.of(jacobian, r), metric=self._metric, pixels=pixels)

    def moved(self, normal: NormalEquations, z: Tensor, r: Tensor) -> NormalEquations:
        """Return the matrix of before with the slope ``Jᵀr`` at ``z``, in float64."""
        back = self.model.products(torch.float64).against(z)
        return replace(normal, slope=back(r * self.equations.weight * self.used))

    @cached_property
    def used(self) -> Tensor:
        """Return one for every row (R,) that the normal equations are made of, zero for others."""
        every = torch.ones_like(self.equations.weight)
        kept = self._kept
        return every if kept is None else torch.zeros_like(every).index_fill_(0, kept, 1.0)

    @cached_property
    def _kept(self) -> Tensor | None:
        return self.model.kept()

    @cached_property
    def _metric(self) -> Tensor | None:
        return roughness_metric(self.model.exact.shape, self.smoothness)
