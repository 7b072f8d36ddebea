"""Other readings of the same numbers: a label of a simple family at another scale or sign.

With the scalar ``τ`` known, the prediction ``p`` is known whatever factor the share was multiplied
by, and the label lies on the line ``y(s) = p − s u``. Read as the gradient itself, the share means
``s = |τ|``. If the label there is not simple, but one elsewhere on the line is, then somebody
probably averaged the loss, weighed the class, told another learning rate, or sent ``after −
before`` (``s < 0``). Labels of the simple families are the points where all entries but one or
two are equal, so ``(u_i, p_i)`` of the others lie on a line of slope ``s``: a regression finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor

from softleak.labels.curve import distance, root_mean_square
from softleak.labels.families import KNOWN, Family, OneHot, SmoothedMixed
from softleak.labels.pseudo import LARGEST, PseudoLabels
from softleak.labels.scale import Segment
from softleak.labels.search import FIT
from softleak.results import Reading

LEADING = 2  # entries at either end of u, and of p, that may be a label's own classes
SLACK = 4.0  # errors: how far below zero a label's entry may be
DISTINCT = 64.0  # roundings: a label this close to the prediction is told apart from it
SAME = 1e-3  # relative: scales this close to one are one
TINY = 1e-300
CHUNK = 1 << 22  # label entries held at once


def simplicity(family: object, classes: int) -> int:
    """How many equations a known family imposes on C entries that sum to one; 0 if none."""
    if family not in KNOWN:
        return 0
    return classes - 1 if isinstance(family, OneHot) else (
        classes - 3 if isinstance(family, SmoothedMixed) else classes - 2
    )  # fmt: skip


def simpler_readings(
    pseudo: PseudoLabels, tau: Tensor, error: Tensor, simple: Sequence[int]
) -> Iterator[Reading | None]:
    """For each of N clients the simplest label on its line that is simpler than the one found.

    Args:
        pseudo: the curves of the clients.
        tau: (N,) the scalars found.
        error: (N,) how far they may be off.
        simple: how many equations the label found satisfies, by client.
    """
    rows = max(CHUNK // (42 * pseudo.u.shape[-1]), 1)
    for part in torch.split(torch.arange(len(tau), device=tau.device), rows):
        segment = Segment.at(pseudo.take(part), tau[part], error[part])
        s = _regressions(segment, tau[part].abs())
        levels = [simple[i] for i in part.tolist()]
        found = _simplest(segment, s / tau[part].abs()[:, None], s, levels)
        for index, reading in zip(part.tolist(), found, strict=True):
            # The share is τ δ/|δ|: at s it is the gradient times |τ|/s.
            yield reading and replace(reading, scale=float(tau[index].abs()) / reading.scale)


def _regressions(segment: Segment, size: Tensor) -> Tensor:
    """(N, S) slopes of ``p`` against ``u`` without the entries of every one or two classes."""
    p, u = segment.p[:, None], segment.u[:, None]
    error = segment.errors(size[:, None], p - size[:, None, None] * u)
    weight = (error.amin(-1, keepdim=True) / error.clamp_min(TINY)).square()
    weight = weight * _without_leading(segment)
    through_zero = (weight * p * u).sum(-1) / (weight * u * u).sum(-1).clamp_min(TINY)
    total = weight.sum(-1, keepdim=True).clamp_min(TINY)
    p, u = (x - (weight * x).sum(-1, keepdim=True) / total for x in (p, u))
    level = (weight * p * u).sum(-1) / (weight * u * u).sum(-1).clamp_min(TINY)
    return torch.cat([through_zero, level], 1).nan_to_num(0.0, 0.0, 0.0)


def _without_leading(segment: Segment) -> Tensor:
    """(N, M, C) zero at one or two entries that may be a label's classes, one elsewhere."""
    u, p = segment.u, segment.p
    ends = min(LEADING, u.shape[-1])
    leading = [x.topk(ends).indices for x in (u, -u, p)]
    chosen = torch.cat(leading, 1)
    groups = [[i, i] for i in range(chosen.shape[1])]
    groups += [list(pair) for pair in combinations(range(chosen.shape[1]), 2)]
    index = chosen[:, torch.tensor(groups, device=u.device)]  # (N, M, 2)
    kept = torch.ones(*index.shape[:2], u.shape[-1], dtype=u.dtype, device=u.device)
    return kept.scatter(2, index, 0.0)


def _simplest(
    segment: Segment, ratio: Tensor, s: Tensor, levels: Sequence[int]
) -> list[Reading | None]:
    """The simplest family that fits at one of the slopes ``s`` (N, S), if it beats ``levels``.

    ``ratio`` (N, S) is each slope relative to the one found.
    """
    classes = segment.p.shape[-1]
    y, _ = segment.labels(s)
    error = segment.errors(s.abs(), y)
    possible = (y >= -SLACK * error).all(-1) & (s.abs() <= LARGEST)
    possible &= s.abs() > DISTINCT * segment.relative
    # Another scale, not the same with another rounding.
    unsure = SLACK * segment.error.sum(-1, keepdim=True) / (s / ratio).abs().clamp_min(TINY)
    possible &= (ratio - 1).abs() > SAME + unsure
    found: list[Reading | None] = [None] * len(s)
    for family in KNOWN:
        level = simplicity(family, classes)
        misfit = root_mean_square(*distance(family, y, error)).masked_fill(~possible, torch.inf)
        best, at = misfit.min(1)
        for client, (value, index) in enumerate(zip(best.tolist(), at.tolist(), strict=True)):
            if found[client] is None and value <= FIT and level > levels[client]:
                found[client] = _reading(family, y[client, index], float(s[client, index]))
    return found


def _reading(family: Family, y: Tensor, s: float) -> Reading:
    label = family.project(y).clamp_min(0)
    return Reading(label / label.sum(), s, family)
