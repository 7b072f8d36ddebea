"""This module finds the sparse vectors of a space: one for each sample of a batch behind a ReLU.

The rows of ``R`` (m, B) are points; a sample whose unit j was off has ``R_j · a = 0``. So each
sample is a hyperplane that holds many of the points exactly, where any B − 1 would be chance.
Where samples are alike, units that one sample alone switched on lie on a line and tell even more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from softleak.batches.direction_settings import DirectionSettings
from softleak.batches.exact_zeros import Directions, exact_directions, joined_directions
from softleak.batches.sharpen import draw, fit_smallest, sharpen
from softleak.batches.sparse_climb import climb, distinct, rounded_cloud, starts
from softleak.batches.sparse_lines import line_duals, lone_lines

Way = Callable[[Tensor, Tensor, DirectionSettings], Tensor]  # from nearly sparse to sparse vectors


def sparse_directions(R: Tensor, errors: Tensor, settings: DirectionSettings) -> Directions:
    """Return the sparse vectors of the column space of ``R`` (m, B), as many as were found.

    Args:
        R: the points, one row for each unit.
        errors: the standard error (m,) of each row's entries.
        settings: how to search.
    """
    lines = lone_lines(R, errors)
    if len(lines) and R.shape[1] > 1:
        found = _beside_lines(R, errors, lines, settings)
        if len(found) == R.shape[1]:
            return found
    return _search(R, errors, R[:0], settings)


def _beside_lines(
    R: Tensor, errors: Tensor, lines: Tensor, settings: DirectionSettings
) -> Directions:
    """Return the sparse vectors, where ``lines`` (K, B) are the rows of units of K samples alone.

    The vectors of the other samples are orthogonal to all lines, and that of one of the K samples
    to all lines but its own: both searches are in fewer dimensions. There, the other samples no
    longer count, so that more units are of one sample alone and new lines appear.
    """
    missing = R.shape[1] - len(lines)
    rest = torch.linalg.svd(lines)[2][len(lines) :].T  # (B, B − K)
    if missing:
        others = sparse_directions(R @ rest, errors, settings).vectors @ rest.T
        if len(others) != missing:
            return Directions.none(R)
    else:
        others = R[:0]
    vectors = [others]
    for own in torch.linalg.pinv(lines).T:
        if missing:
            basis = torch.linalg.qr(torch.cat([own[None], others]).T)[0]
            within = R @ basis
            near = torch.cat([others @ basis, line_duals(lone_lines(within, errors))])
            more = _search(within, errors, near, settings)
            if len(more) != missing + 1:
                return Directions.none(R)
            own = (more.vectors @ basis.T)[-1]
        vectors.append(own[None])
    alive = _alive(R, errors, settings)
    inverse = torch.linalg.inv(rounded_cloud(R[alive], settings)[1])
    found = exact_directions(R, errors, alive, torch.cat(vectors), settings)
    return joined_directions(Directions.none(R), found, inverse)


def _alive(R: Tensor, errors: Tensor, settings: DirectionSettings) -> Tensor:
    """Return which units (m,) were on for some sample."""
    return torch.gt(R.norm(dim=1), settings.zero_errors * errors * R.shape[1] ** 0.5)


def _search(R: Tensor, errors: Tensor, known: Tensor, settings: DirectionSettings) -> Directions:
    """Return the sparse vectors of the space of ``R`` (m, B), those near to known ones first."""
    generator = torch.Generator().manual_seed(settings.seed)
    B, alive = R.shape[1], _alive(R, errors, settings)
    if B == 1:  # one sample is left, and the space is its own
        return Directions(R.new_ones(1, 1), ~alive[None], R.new_tensor([torch.inf]))
    if int(alive.sum()) < B + settings.margin:
        return exact_directions(R, errors, alive, known, settings)
    points, T = rounded_cloud(R[alive], settings)
    inverse = torch.linalg.inv(T)
    exact = exact_directions(R, errors, alive, known, settings)
    found = joined_directions(Directions.none(R), exact, inverse)
    for number in range(settings.rounds):
        if len(found) >= B:
            break
        before = len(found)
        near = found.vectors @ inverse.T
        new = distinct(climb(points, near, number % 2 == 1, settings, generator), near, settings)
        for way in (fit_smallest, sharpen, _draw_around(near, settings, generator)):
            sharp = way(points, new, settings) @ T.T
            more = exact_directions(R, errors, alive, sharp, settings)
            found = joined_directions(found, more, inverse)
            if len(found) > before:  # the slower ways are for what the quicker ones leave
                break
    return found


def _draw_around(near: Tensor, settings: DirectionSettings, generator: torch.Generator) -> Way:
    """Return the way that looks around what was climbed and away from what is known."""

    def way(points: Tensor, new: Tensor, _: DirectionSettings) -> Tensor:
        tried = torch.cat([new, starts(near, settings.drawn_vectors, settings, generator)])
        return draw(points, tried[: settings.drawn_vectors], near, settings, generator)

    return way
