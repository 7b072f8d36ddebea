"""This module draws errors as a share carries them: simulated rounding, and noise."""

from __future__ import annotations

import torch
from torch import Tensor

from softleak.matching.gauss_newton.batch_function import BatchFunction
from softleak.matching.gauss_newton.share_equations import ShareEquations


def draw_errors(
    equations: ShareEquations,
    client: BatchFunction,
    z: Tensor,
    count: int = 6,
    jitter: float = 1e-3,
    seed: int = 0,
) -> Tensor:
    """Return errors (count, R) that a share of these inputs may carry, in standard errors.

    The client's own arithmetic is repeated near the inputs and compared with float64: rounding
    errors of neighbouring entries are correlated, as no formula says. What a format or noise adds
    is drawn independently. Rows that are known otherwise have errors of their own size.

    Args:
        equations: the equations, in float64.
        client: the same function in the dtype in which the client computes.
        z: unknowns (n,) near the truth.
        count: how many errors are drawn.
        jitter: how far from ``z`` the arithmetic is repeated, relative to the inputs' spread, so
            that every draw rounds otherwise.
        seed: the seed of all draws.
    """
    generator = torch.Generator().manual_seed(seed)
    exact, dtype = equations.function, client.model.like.dtype
    spread = float(z[: exact.pixels].std())
    drawn = []
    for _ in range(count):
        off = torch.randn(exact.pixels, generator=generator, dtype=torch.double) * spread * jitter
        near = z.clone()
        near[: exact.pixels] += off
        near = near.to(dtype)
        with torch.no_grad():
            error = _sent(equations, client.rows(near)) - exact.rows(near.double())
        # What is computed in float64 cannot be compared with anything finer.
        simulated = 0.5 if dtype is not torch.float64 else 4.0
        drawn.append((error + _independent(equations, simulated, generator)) * equations.weight)
    return torch.stack(drawn)


def _sent(equations: ShareEquations, rows: Tensor) -> Tensor:
    """Return rows (R,) as they arrive: gradients rounded to the dtype they were sent in."""
    sizes = equations.function.sizes
    parts = zip(sizes, rows.split_with_sizes(list(sizes.values())), strict=True)
    return torch.cat(
        [part.to(equations.sent.get(name, torch.float64)).double() for name, part in parts]
    )


def _independent(equations: ShareEquations, least: float, generator: torch.Generator) -> Tensor:
    """Return errors (R,) that no simulation shows: noise, a coarse format, and rounding of at
    least a part of the standard error.
    """
    sizes = equations.function.sizes
    ends = torch.tensor([0, *sizes.values()]).cumsum(0).tolist()
    size = torch.zeros_like(equations.deviation)
    for name, low, high in zip(sizes, ends[:-1], ends[1:], strict=True):
        own = equations.deviation[low:high]
        said = equations.noise.get(name, 0.0) > 0 or equations.coarse.get(name, 0.0) > 0
        whole = said or name not in equations.sent  # else most of it is simulated
        size[low:high] = torch.where(own.isfinite(), own if whole else own * least, 0.0)
    return size * torch.randn(len(size), generator=generator, dtype=torch.double)
