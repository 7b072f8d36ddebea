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
OWN = 8 * torch.finfo(torch.double).eps  # what our own arithmetic adds to a float64 share


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
    explained: Tensor  # the residual that the share's own known rounding leaves

    def take(self, rows: Tensor) -> Factors:
        """The factors of some clients."""
        return Factors(
            self.u[rows], self.sigma[rows], self.v[rows], self.residual[rows],
            self.relative, self.absolute[rows], self.tiny, self.explained[rows],
        )  # fmt: skip

    @property
    def zero(self) -> Tensor:
        """(N,) whether the gradient is zero."""
        return self.sigma == 0

    @property
    def rank_one(self) -> Tensor:
        """(N,) whether rounding explains all that is not rank one."""
        return torch.le(self.residual, RANK_TOLERANCE * self.relative + self.explained)


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
    return torch.stack([share[name].to(head.W.device) for share in shares])


def factor(head: Head, shares: Sequence[GradientShare]) -> Factors:
    """The leading singular pair of each head gradient, by power steps from its largest row."""
    stacked = head_gradients(head, shares)
    G = stacked.double()
    row = G.square().sum(-1).argmax(-1)
    v = _unit(G[torch.arange(len(G), device=G.device), row])
    for _ in range(POWER_STEPS):
        u = torch.einsum("nci,ni->nc", G, v)
        v = _unit(torch.einsum("nci,nc->ni", G, u))
    u = torch.einsum("nci,ni->nc", G, v)
    sigma = u.norm(dim=-1)
    u = _unit(u)
    rest = torch.baddbmm(G, (u * sigma[:, None])[:, :, None], v[:, None, :], alpha=-1)
    residual = rest.flatten(1).norm(dim=-1) / sigma.clamp_min(TINY)
    # The coarser of what the client computed in and what it sent.
    info = max(map(torch.finfo, (stacked.dtype, head.dtype)), key=lambda info: info.eps)
    relative = max(info.eps / 2, OWN)
    known = [share.rounding.get(head.weight_name, 0.0) for share in shares]
    absolute = sigma.new_tensor(known) + info.tiny * info.eps
    explained = 2 * absolute * G[0].numel() ** 0.5 / sigma.clamp_min(TINY)
    # What is neither rank one nor rounding is noise, and is in u and v as well.
    noise = residual * sigma / G[0].numel() ** 0.5
    absolute = absolute + torch.where(residual > 2 * relative, noise, 0.0)
    # A feature is mostly positive after an activation: with v so, t > 0 in the usual case.
    sign = torch.where(v.sum(-1) < 0, -1.0, 1.0)[:, None]
    return Factors(u * sign, sigma, v * sign, residual, relative, absolute, info.tiny, explained)


def _unit(x: Tensor) -> Tensor:
    return torch.div(x, x.norm(dim=-1, keepdim=True).clamp_min(TINY))


def numerical_rank(head: Head, share: GradientShare, relative: float) -> int:
    """How many singular values of ``G`` stand above rounding: a bound on the samples."""
    values = torch.linalg.svdvals(share[head.weight_name].double())
    return int((values > RANK_TOLERANCE * relative * values[0]).sum())
