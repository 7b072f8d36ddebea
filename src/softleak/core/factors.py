"""The factors of the head's gradient, ``G = σ u vᵀ``, which has rank one for one sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from softleak.core.errors import MissingGradient, ShareError
from softleak.core.head import CACHED_BLOCK, Head, product_and_sums
from softleak.core.share import GradientShare

# What decides when a gradient of the head counts as that of one sample:
NOISY = 1e-6  # a relative residual beyond float32 rounding, from which on all rows vote
NOISE_ROUNDINGS = 32.0  # a residual of as many roundings is noise
POWER_STEPS = 2  # steps of power iteration towards the first singular vector
PROBES = 2  # random directions that a residual is estimated from
SECOND_VALUE = 64.0  # roundings above which a second singular value is another sample
COARSEST = 1e-3  # the resolution from which on fewer roundings have to suffice
FEWEST_ROUNDINGS = 4.0  # as many suffice there: more would hide a sample
LEVEL = 1.5  # of the mean square of u: what its largest is below if all are alike
UNBALANCED = 1e-2  # what rounding leaves of a sum over u at the smallest t of interest
SMALLEST_NORMAL = torch.finfo(torch.double).tiny
OWN = 8 * torch.finfo(torch.double).eps  # what our own arithmetic adds to a float64 share


PER_CLIENT = ("u", "sigma", "v", "residual", "absolute", "explained", "sums")


@dataclass(frozen=True, eq=False)
class Factors:
    """``G = σ u vᵀ`` of N clients: ``u`` (N, C), ``v`` (N, I), the rest (N,).

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
    sums: Tensor  # (N, I) over the columns of G

    def take(self, rows: Tensor | slice) -> Factors:
        taken: dict[str, Any] = {name: getattr(self, name)[rows] for name in PER_CLIENT}
        return replace(self, **taken)

    def feature_error(self, client: int) -> float:
        """Return the relative error of the direction ``v`` of one client's feature."""
        noise = self.absolute[client] * self.v.shape[-1] ** 0.5 / self.sigma[client]
        return self.relative + float(noise)

    @property
    def zero(self) -> Tensor:
        return self.sigma == 0

    @property
    def slack(self) -> Tensor:
        """Return the residual (N,) up to which rounding explains all that is not rank one."""
        return roundings(SECOND_VALUE, self.relative) + self.explained

    @property
    def rank_one(self) -> Tensor:
        """Return whether rounding explains all that is not rank one."""
        return torch.le(self.residual, self.slack)

    @property
    def level(self) -> Tensor:
        """Return whether the entries of ``u`` that are not zero are of about the same size."""
        entries = (self.u != 0).sum(-1)
        return torch.lt(self.u.square().amax(-1) * entries, LEVEL)

    def balanced(self, client: int, t: float | None) -> bool:
        """Return whether ``p − y = t u`` sums to zero, for this ``t`` or for any if it is None."""
        off = float(self.u[client].sum().abs())
        if t is None:
            return off <= UNBALANCED
        known = float(self.absolute[client] / self.sigma[client])
        entries = self.u.shape[-1] ** 0.5
        left: float = SECOND_VALUE * entries * (self.relative + known * abs(t))
        return off * abs(t) <= left


def roundings(count: float, relative: float) -> float:
    """Return what roundings leave of a product: of coarse ones, more would hide a sample."""
    return max(min(count * relative, COARSEST), FEWEST_ROUNDINGS * relative)


def head_gradients(head: Head, shares: Sequence[GradientShare]) -> list[Tensor]:
    """Return the head's weight gradients (C, I) in the dtype they came in, checked."""
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
    return [share[name].to(head.W.device) for share in shares]


def factor(head: Head, shares: Sequence[GradientShare]) -> Factors:
    """Return the leading singular pair of each head gradient, computed once for each share."""
    gradients = head_gradients(head, shares)
    # The coarsest of what the client computed in and what it sent.
    info = max(map(torch.finfo, (gradients[0].dtype, head.dtype)), key=lambda info: info.eps)
    relative = max(shares[0].resolution(head.weight_name, head.dtype), OWN)
    key = (factor, head.weight_name, head.W.device, info.eps, info.tiny, relative)
    new = list({id(share): share for share in shares if not share.remembers(key)}.values())
    if new:
        known = [share.noise(head.weight_name) for share in new]
        made = _factors(head_gradients(head, new), known, info.tiny, info.eps, relative)
    rows = count()
    held = [share.once(key, lambda: made.take(slice(n := next(rows), n + 1))) for share in shares]
    if len(held) == len(new):
        return made
    if len(held) == 1:
        return held[0]
    joined: dict[str, Any] = {n: torch.cat([getattr(o, n) for o in held]) for n in PER_CLIENT}
    return replace(held[0], **joined)


def _factors(
    gradients: Sequence[Tensor], known: Sequence[float], tiny: float, eps: float, relative: float
) -> Factors:
    """Return the factors of gradients (C, I), a few clients at a time."""
    clients = max(CACHED_BLOCK // gradients[0].numel(), 1)
    parts = [_factor(gradients[i : i + clients]) for i in range(0, len(gradients), clients)]
    u, sigma, v, residual, sums = (torch.cat(part) for part in zip(*parts, strict=True))
    absolute = sigma.new_tensor(known) + tiny * eps
    entries = gradients[0].numel() ** 0.5
    explained = 2 * absolute * entries / sigma.clamp_min(SMALLEST_NORMAL)
    # What is neither rank one nor rounding is noise, and is in u and v as well.
    noise = torch.where(residual > NOISE_ROUNDINGS * relative, residual * sigma / entries, 0.0)
    # A feature is mostly positive after an activation: with v so, t > 0 in the usual case.
    sign = torch.where(v.sum(-1) < 0, -1.0, 1.0)[:, None]
    return Factors(
        u * sign, sigma, v * sign, residual, relative, absolute + noise, tiny, explained, sums
    )


def _factor(gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return ``u``, ``σ``, ``v``, the residual and the column sums of N gradients of one size."""
    G = torch.stack(list(gradients)) if len(gradients) > 1 else gradients[0][None]
    G = G.float() if G.element_size() < 4 else G  # products in half precision lose what is there
    probes = _drawn(G.shape[-1]).to(G.device, G.dtype)
    # One pass over a gradient serves all directions; a random product tells the largest row.
    seen = torch.stack([F.linear(probes, one) for one in G]).double()
    v = _unit(G[torch.arange(len(G), device=G.device), seen[:, 0].abs().argmax(-1)].double())
    product, sums = _products(G, v)
    residual = _left(product, v, probes, seen)
    sigma: Tensor = torch.linalg.vector_norm(product, dim=-1)
    noisy = (residual > NOISY * sigma).nonzero()[:, 0]
    if len(noisy):  # the others stay as they are, whatever is in their batch
        own = G[noisy]
        for _ in range(POWER_STEPS):
            v[noisy] = _unit(torch.einsum("nci,nc->ni", own.double(), product[noisy]))
            product[noisy] = _products(own, v[noisy])[0]
            residual[noisy] = _left(product[noisy], v[noisy], probes, seen[noisy])
        sigma = torch.linalg.vector_norm(product, dim=-1)
    return (
        product / sigma.clamp_min(SMALLEST_NORMAL)[:, None], sigma, v,
        residual / sigma.clamp_min(SMALLEST_NORMAL), sums,
    )  # fmt: skip


@lru_cache(maxsize=4)
def _drawn(entries: int) -> Tensor:
    """Return random directions (P, I), the same in every run."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(PROBES, entries, generator=generator)


def _products(G: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``G v`` (N, C) and the sums (N, I) over the columns of ``G``, both in float64."""
    if G[0].numel() <= CACHED_BLOCK:
        G = G.double()
        return torch.bmm(G, v[:, :, None])[..., 0], G.sum(1)
    both = [product_and_sums(one, own) for one, own in zip(G, v, strict=True)]
    products, sums = zip(*both, strict=True)
    return torch.stack(products), torch.stack(sums)


def _left(product: Tensor, v: Tensor, probes: Tensor, seen: Tensor) -> Tensor:
    """Estimate the norm (N,) of what ``v`` leaves of ``G`` from random directions (P, I)."""
    along = v @ probes.double().T
    rests = seen - along[..., None] * product[:, None]
    return rests.square().sum((1, 2)).div(PROBES).sqrt()


def _unit(x: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / size.clamp_min(SMALLEST_NORMAL)


def numerical_rank(head: Head, share: GradientShare, relative: float) -> int:
    """Return how many singular values of ``G`` stand above rounding: a bound on the samples."""
    G = share[head.weight_name].double()
    values = torch.linalg.svdvals(G)
    edge = sum(side**0.5 for side in G.shape) * share.noise(head.weight_name)
    return int((values > SECOND_VALUE * relative * values[0] + 2 * edge).sum())
