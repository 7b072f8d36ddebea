"""What the head's gradient says about the noise on it, before any label is looked for.

The rows of a head gradient sum to zero, for one sample or for many. Whatever they sum to instead is
noise. Independent noise spreads evenly over all singular values (Marchenko and Pastur), whereas a
second sample adds a single large one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SpectrumSettings:
    """The thresholds by which noise, samples and altered shares are told apart.

    Attributes:
        edge: a singular value this many times the largest of noise alone is that of a sample.
        unsure: standard errors by which the noise's variance may be underestimated.
        clear: the leading singular value is not noise alone from this many times its edge on.
        even: the ratio of variances up to which two parts of the noise count as equally large.
        holes: the part of zero entries, in rows and columns that are not zero, from which a share
            counts as pruned or as rounded to zero.
        heavy: the kurtosis from which tails count as those of Laplace's distribution. The normal
            distribution has 3 and Laplace's has 6.
        far: standard deviations at which heavy tails are cut off.
        repaired: the part of a row that may be left unexplained when a noisy row is repaired.
        smallest: the smallest divisor.
    """

    edge: float = 1.5
    unsure: float = 3.0
    clear: float = 1.1
    even: float = 3.0
    holes: float = 0.01
    heavy: float = 4.2
    far: float = 2.0
    repaired: float = 1e-3
    smallest: float = 1e-300


SPECTRUM = SpectrumSettings()


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The noise of a head gradient ``G`` (C, I), and what stands out of it.

    Attributes:
        noise: the standard deviation of the noise on one entry.
        samples: the number of singular values above the noise, at least one.
        even: whether the noise is equally large everywhere. Independent noise is; what pruning
            leaves out is not.
        heavy: whether the noise has tails like those of Laplace's distribution.
        clear: whether the leading singular pair stands out of the noise.
    """

    noise: float
    samples: int
    even: bool
    heavy: bool
    clear: bool

    @classmethod
    def of(cls, G: Tensor) -> Spectrum:
        """Estimate the noise of ``G`` from its column sums and from all but its leading pair."""
        classes, inputs = G.shape
        sums = G.sum(0)
        values = torch.linalg.svdvals(G - sums / classes).square()
        beside = float(sums.square().sum()) / (classes * inputs)
        freedom = max(classes - 2, 0) * (inputs - 1)
        rest = float(values[1:].sum())
        noise = (rest + beside * inputs) / (freedom + inputs)
        # With few columns the estimate is rough: the noise may be larger than it says.
        unsure = 1 + SPECTRUM.unsure * math.sqrt(2 / inputs)
        widest = (math.sqrt(inputs) + math.sqrt(classes - 1)) ** 2
        edge = SPECTRUM.edge**2 * unsure * beside * widest
        above = int((values > edge).sum())
        clear = float(values[0]) > edge * (SPECTRUM.clear / SPECTRUM.edge) ** 2
        heavy = _kurtosis(G - sums / classes) > SPECTRUM.heavy
        if _holes(G) > SPECTRUM.holes:
            return cls(math.sqrt(noise), 1, False, heavy, clear)
        even = freedom == 0 or beside / SPECTRUM.even <= rest / freedom <= beside * SPECTRUM.even
        return cls(math.sqrt(noise), max(above, 1), even, heavy, clear)

    def light(self, G: Tensor, usual: Tensor) -> tuple[Tensor, float]:
        """Return ``G`` (C, I) and its noise, with heavy tails cut off where they hide the signal.

        The part of ``G`` along the ``usual`` direction of features (I,) is an average over many
        entries. It is kept as it is.
        """
        if self.clear or not self.heavy:
            return G, self.noise
        kept, far = torch.outer(G @ usual, usual), SPECTRUM.far * self.noise
        inside = 1 - math.exp(-math.sqrt(2) * SPECTRUM.far)  # Laplace's mass within the cut
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
    if not float(across.norm()) > SPECTRUM.repaired * float(G.norm()):
        return None  # Nothing is left of the gradient without the noise.
    u = torch.linalg.eigh(across @ across.T).eigenvectors[:, -1]
    expected = torch.eye(len(u), dtype=u.dtype, device=u.device) - torch.outer(u, u)
    left = along - u * (u @ along)
    far = (expected - left[:, None]).norm(dim=0)
    row = int(far.argmin())
    found = float(far[row]) <= SPECTRUM.repaired * max(1.0, float(left.norm()))
    repaired = G.clone()
    repaired[row] -= noise
    empty = float((G[row] == 0).double().mean())
    pruned = _holes(repaired) > SPECTRUM.holes or empty > SPECTRUM.holes
    if not found or pruned or int(across.any(1).sum()) <= 2:
        return None
    return repaired, row


def _kurtosis(G: Tensor) -> float:
    """Return the kurtosis of the entries of ``G`` (C, I) without its leading rank-one part."""
    u = torch.linalg.eigh(G @ G.T).eigenvectors[:, -1]
    rest = G - torch.outer(u, u @ G)
    return float(rest.pow(4).mean() / rest.square().mean().square().clamp_min(SPECTRUM.smallest))


def _holes(G: Tensor) -> float:
    """Return the part of entries that are zero, in rows and columns that are not."""
    seen = G != 0
    inner = seen[seen.any(1)][:, seen.any(0)]
    return 1 - float(inner.double().mean()) if inner.numel() else 0.0
