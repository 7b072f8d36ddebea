"""This module holds other readings of the same numbers: a label of a simple family at another scale
or sign.

With the scalar ``τ`` known, the prediction ``p`` is known whatever factor the share was multiplied
by, and the label lies on the line ``y(s) = p − s u``. Read as the gradient itself, the share means
``s = |τ|``. If the label there is not simple, but one elsewhere on the line is, then somebody
probably averaged the loss, weighed the class, told another learning rate, or sent ``after −
before`` (``s < 0``). Labels of the simple families are the points where all entries but one or two
are equal, so ``(u_i, p_i)`` of the others lie on a line of slope ``s``: a regression finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from softleak.families import KNOWN_FAMILIES, Family, OneHot, SmoothedMixed
from softleak.labels.curve import ENTRIES_AT_ONCE, distance, root_mean_square
from softleak.labels.minima import SEARCH
from softleak.labels.pseudo import LARGEST, PseudoLabels
from softleak.labels.scale import Segment
from softleak.results import Reading


@dataclass(frozen=True)
class ReadingSettings:
    """These settings look for simpler labels at another scale."""

    leading: int = 2  # entries at either end of u, and of p, that may be a label's own classes
    slack_errors: float = 4.0  # errors: how far below zero a label's entry may be
    distinct_roundings: float = (
        64.0  # roundings: a label this close to the prediction is told apart from it
    )
    same_scale: float = 1e-3  # relative: scales this close to one are one


READINGS = ReadingSettings()


LEAST_DIVISOR = 1e-300


def simplicity(family: object, classes: int) -> int:
    """Return how many equations a known family imposes on C entries that sum to one; 0 if none."""
    if family not in KNOWN_FAMILIES:
        return 0
    return classes - 1 if isinstance(family, OneHot) else (
        classes - 3 if isinstance(family, SmoothedMixed) else classes - 2
    )  # fmt: skip


def simpler_readings(
    pseudo: PseudoLabels, tau: Tensor, error: Tensor, simple: Sequence[int], positive: bool = True
) -> Iterator[Reading | None]:
    """Return for each of N clients the simplest label on its line that is simpler than the one
    found.

    Args:
        pseudo: the curves of the clients.
        tau: (N,) the scalars found.
        error: (N,) how far they may be off.
        simple: how many equations the label found satisfies, by client.
        positive: whether other positive scales count, or negative ones alone.
    """
    rows = max(ENTRIES_AT_ONCE // (42 * pseudo.u.shape[-1]), 1)
    for part in torch.split(torch.arange(len(tau), device=tau.device), rows):
        segment = Segment.at(pseudo.take(part), tau[part], error[part])
        s = _regressions(segment, tau[part].abs())
        s = s if positive else s.clamp_max(0.0)
        seen = _levels(segment, tau[part].abs())
        levels = [min(simple[i], level) for i, level in zip(part.tolist(), seen, strict=True)]
        found = _simplest(segment, s / tau[part].abs()[:, None], s, levels)
        for index, reading in zip(part.tolist(), found, strict=True):
            # The share is τ δ/|δ|: at s it is the gradient times |τ|/s.
            yield reading and replace(reading, scale=float(tau[index].abs()) / reading.scale)


def _levels(segment: Segment, size: Tensor) -> list[int]:
    """Return how many equations the labels at ``s = size`` (N,) satisfy, entry by entry.

    A label's error in L1 is that of its largest entries, and hides what small ones say.
    """
    y, _ = segment.labels(size[:, None])
    error = segment.errors(size[:, None], y)
    found = [0] * len(size)
    for family in reversed(KNOWN_FAMILIES):
        fits = root_mean_square(*distance(family, y, error))[:, 0] <= SEARCH.fit
        level = simplicity(family, y.shape[-1])
        found = [max(level, one) if fit else one for one, fit in zip(found, fits, strict=True)]
    return found


def _regressions(segment: Segment, size: Tensor) -> Tensor:
    """Return slopes (N, S) of ``p`` against ``u`` without the entries of one or two classes."""
    p, u = segment.p[:, None], segment.u[:, None]
    error = segment.errors(size[:, None], p - size[:, None, None] * u)
    weight = (error.amin(-1, keepdim=True) / error.clamp_min(LEAST_DIVISOR)).square()
    weight = weight * _without_leading(segment)
    through_zero = (weight * p * u).sum(-1) / (weight * u * u).sum(-1).clamp_min(LEAST_DIVISOR)
    total = weight.sum(-1, keepdim=True).clamp_min(LEAST_DIVISOR)
    p, u = (x - (weight * x).sum(-1, keepdim=True) / total for x in (p, u))
    level = (weight * p * u).sum(-1) / (weight * u * u).sum(-1).clamp_min(LEAST_DIVISOR)
    return torch.cat([through_zero, level], 1).nan_to_num(0.0, 0.0, 0.0)


def _without_leading(segment: Segment) -> Tensor:
    """Return (N, M, C) zero at one or two entries that may be a label's classes, one elsewhere."""
    u, p = segment.u, segment.p
    ends = min(READINGS.leading, u.shape[-1])
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
    """Return the simplest family that fits at one of the slopes ``s`` (N, S), if it beats
    ``levels``.

    ``ratio`` (N, S) is each slope relative to the one found.
    """
    classes = segment.p.shape[-1]
    y, _ = segment.labels(s)
    error = segment.errors(s.abs(), y)
    possible = (y >= -READINGS.slack_errors * error).all(-1) & (s.abs() <= LARGEST)
    possible &= s.abs() > READINGS.distinct_roundings * segment.relative
    # Another scale, not the same with another rounding.
    unsure = (
        READINGS.slack_errors
        * segment.error.sum(-1, keepdim=True)
        / (s / ratio).abs().clamp_min(LEAST_DIVISOR)
    )
    possible &= (ratio - 1).abs() > READINGS.same_scale + unsure
    found: list[Reading | None] = [None] * len(s)
    for family in KNOWN_FAMILIES:
        level = simplicity(family, classes)
        misfit = root_mean_square(*distance(family, y, error)).masked_fill(~possible, torch.inf)
        fits = misfit <= SEARCH.fit
        # Of several the plainest: the share itself with the other sign before any other factor.
        plain = ratio.abs().clamp_min(LEAST_DIVISOR).log().abs().masked_fill(~fits, torch.inf)
        at = plain.argmin(1)
        for client, index in enumerate(at.tolist()):
            if found[client] is None and bool(fits[client, index]) and level > levels[client]:
                found[client] = _reading(family, y[client, index], float(s[client, index]))
    return found


def _reading(family: Family, y: Tensor, s: float) -> Reading:
    label = family.project(y).clamp_min(0)
    return Reading(label / label.sum(), s, family)
