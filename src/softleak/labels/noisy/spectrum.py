"""What the head's gradient says of the noise on it, before any label is looked for.

The rows of a head gradient sum to zero, for one sample or many: what they do sum to is noise. And
noise fills all singular values evenly (Marchenko and Pastur), a second sample one of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

TINY = 1e-300
EDGE = 1.5  # times the largest singular value of noise alone: the next one is a sample
UNSURE = 3.0  # standard errors of the noise's variance
CLEAR = 1.1  # times the same: the leading pair is not noise alone
EVEN = 3.0  # in variance: how far the noise of two parts may differ and still be of one kind
HOLES = 0.01  # entries that are zero, their rows and columns not: pruned, or rounded to zero
HEAVY = 4.2  # a kurtosis between that of the normal distribution, 3, and that of Laplace's, 6
FAR = 2.0  # standard deviations: Laplace's distribution, drawn in to these, is normal enough
REPAIRED = 1e-3  # of a row: what finding the noisy one may leave


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Noise of a head gradient ``G`` (C, I): its standard deviation, and what stands out of it."""

    noise: float
    samples: int  # singular values above the noise
    even: bool  # of one size everywhere: independent noise is, what pruning leaves out is not
    heavy: bool  # tails as Laplace's distribution has them
    clear: bool  # the leading pair stands out of the noise

    @classmethod
    def of(cls, G: Tensor) -> Spectrum:
        """The noise of ``G``, from the sums of its columns and from all but its leading pair."""
        classes, inputs = G.shape
        sums = G.sum(0)
        values = torch.linalg.svdvals(G - sums / classes).square()
        beside = float(sums.square().sum()) / (classes * inputs)
        freedom = max(classes - 2, 0) * (inputs - 1)
        rest = float(values[1:].sum())
        noise = (rest + beside * inputs) / (freedom + inputs)
        # Few columns tell the noise badly: it may well be larger than they say.
        unsure = 1 + UNSURE * math.sqrt(2 / inputs)
        edge = EDGE**2 * unsure * beside * (math.sqrt(inputs) + math.sqrt(classes - 1)) ** 2
        above = int((values > edge).sum())
        clear = float(values[0]) > edge * (CLEAR / EDGE) ** 2
        heavy = _kurtosis(G - sums / classes) > HEAVY
        if _holes(G) > HOLES:
            return cls(math.sqrt(noise), 1, False, heavy, clear)
        even = freedom == 0 or beside / EVEN <= rest / freedom <= beside * EVEN
        return cls(math.sqrt(noise), max(above, 1), even, heavy, clear)

    def light(self, G: Tensor, usual: Tensor) -> tuple[Tensor, float]:
        """``G`` and the noise on it, heavy tails drawn in where they would hide what it says.

        What lies along the ``usual`` direction of features (I,) is an average, and is kept.
        """
        if self.clear or not self.heavy:
            return G, self.noise
        kept, far = torch.outer(G @ usual, usual), FAR * self.noise
        inside = 1 - math.exp(-math.sqrt(2) * FAR)  # the part of Laplace's distribution
        near = kept + (G - kept).clamp(-far, far) / inside
        return near, Spectrum.of(near).noise


def without_noisy_row(G: Tensor) -> tuple[Tensor, int] | None:
    """``G`` with its only noisy row replaced by minus the sum of the others, and which it is.

    With noise ``n`` on row r the columns sum to ``n``. Across that direction ``G`` is clean and
    gives ``u``; along it, what ``u`` leaves of ``G`` is ``e_r − u_r u``.
    """
    noise = G.sum(0)
    size = float(noise @ noise)
    if size == 0:
        return None
    along = G @ noise / size
    across = G - torch.outer(along, noise)
    if not float(across.norm()) > REPAIRED * float(G.norm()):  # nothing is left without it
        return None
    u = torch.linalg.eigh(across @ across.T).eigenvectors[:, -1]
    expected = torch.eye(len(u), dtype=u.dtype, device=u.device) - torch.outer(u, u)
    left = along - u * (u @ along)
    far = (expected - left[:, None]).norm(dim=0)
    row = int(far.argmin())
    found = float(far[row]) <= REPAIRED * max(1.0, float(left.norm()))
    repaired = G.clone()
    repaired[row] -= noise
    pruned = _holes(repaired) > HOLES or float((G[row] == 0).double().mean()) > HOLES
    if not found or pruned or int(across.any(1).sum()) <= 2:
        return None
    return repaired, row


def _kurtosis(G: Tensor) -> float:
    """Of what is not rank one in ``G`` (C, I)."""
    u = torch.linalg.eigh(G @ G.T).eigenvectors[:, -1]
    rest = G - torch.outer(u, u @ G)
    return float(rest.pow(4).mean() / rest.square().mean().square().clamp_min(TINY))


def _holes(G: Tensor) -> float:
    """The part of entries that are zero in rows and columns that are not."""
    seen = G != 0
    inner = seen[seen.any(1)][:, seen.any(0)]
    return 1 - float(inner.double().mean()) if inner.numel() else 0.0
