"""The head's gradient ``G = σ u vᵀ``: rank one for one sample, and how exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.errors import MissingGradient, ShareError
from softleak.head import Head
from softleak.share import GradientShare

POWER_STEPS = 2  # from the largest row; rank one up to rounding needs no more
RANK_TOLERANCE = 64.0  # a second singular value above this many roundings is another sample
TINY = torch.finfo(torch.double).tiny


@dataclass(frozen=True, eq=False)
class Factors:
    """``G = σ u vᵀ`` for N clients, and how exactly. ``u`` (N, C), ``v`` (N, I), the rest (N,).

    ``relative`` and ``absolute`` are the rounding of an entry of ``G``: a part of its size, and
    whatever its size; numbers below ``tiny`` are lost. ``residual`` is ``‖G − σ u vᵀ‖ / σ``.
    """

    u: Tensor
    sigma: Tensor
    v: Tensor
    residual: Tensor
    relative: float
    absolute: Tensor
    tiny: float

    def take(self, rows: Tensor) -> Factors:
        """The factors of some clients."""
        return Factors(
            self.u[rows], self.sigma[rows], self.v[rows], self.residual[rows],
            self.relative, self.absolute[rows], self.tiny,
        )  # fmt: skip

    @property
    def zero(self) -> Tensor:
        """(N,) whether the gradient is zero."""
        return self.sigma == 0

    @property
    def rank_one(self) -> Tensor:
        """(N,) whether rounding explains all that is not rank one."""
        entries = self.u.shape[-1] ** 0.5 + self.v.shape[-1] ** 0.5
        noise = 4 * entries * self.absolute / self.sigma.clamp_min(TINY)
        return torch.le(self.residual, RANK_TOLERANCE * self.relative + noise)


def head_gradients(head: Head, shares: Sequence[GradientShare]) -> Tensor:
    """(N, C, I) the head's weight gradients in the dtype they came in, checked."""
    name = head.weight_name
    for share in shares:
        if name not in share:
            raise MissingGradient(
                f"the share lacks {name!r}, the gradient of the head; it holds "
                f"{', '.join(list(share)[:6]) or 'nothing'}… Name another head or send that layer"
            )
        if share[name].shape != head.W.shape:
            raise ShareError(
                f"the head's gradient {name!r} should be {tuple(head.W.shape)} as the model's "
                f"weight, got {tuple(share[name].shape)}; is this the right model?"
            )
        share.check_finite(name)
    return torch.stack([share[name].to(head.W.device) for share in shares])


def factor(G: Tensor, absolute: Tensor) -> Factors:
    """The leading singular pair of each ``G`` (N, C, I), by power steps from its largest row."""
    info = torch.finfo(G.dtype)
    G = G.double()
    row = G.square().sum(-1).argmax(-1)
    v = G[torch.arange(len(G), device=G.device), row]
    v = v / v.norm(dim=-1, keepdim=True).clamp_min(TINY)
    for _ in range(POWER_STEPS):
        u = torch.einsum("nci,ni->nc", G, v)
        v = torch.einsum("nci,nc->ni", G, u)
        v = v / v.norm(dim=-1, keepdim=True).clamp_min(TINY)
    u = torch.einsum("nci,ni->nc", G, v)
    sigma = u.norm(dim=-1)
    u = u / sigma.clamp_min(TINY)[:, None]
    # A feature is mostly positive after an activation: with v so, t > 0 in the usual case.
    sign = torch.where(v.sum(-1) < 0, -1.0, 1.0)[:, None]
    rest = torch.baddbmm(G, (u * sigma[:, None])[:, :, None], v[:, None, :], alpha=-1)
    residual = rest.flatten(1).norm(dim=-1) / sigma.clamp_min(TINY)
    floor = info.tiny * info.eps
    return Factors(u * sign, sigma, v * sign, residual, info.eps / 2, absolute + floor, info.tiny)


def numerical_rank(G: Tensor, relative: float) -> int:
    """How many singular values of ``G`` (C, I) stand above rounding: a bound on the samples."""
    values = torch.linalg.svdvals(G.double())
    return int((values > RANK_TOLERANCE * relative * values[0]).sum())
