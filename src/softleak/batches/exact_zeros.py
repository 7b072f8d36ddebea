"""This module keeps the vectors that vanish at more entries than chance allows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.batches.direction_settings import DirectionSettings
from softleak.batches.sparse_climb import first_of_its_kind, unit_rows


@dataclass(frozen=True, eq=False)
class Directions:
    """This holds sparse vectors of a space: ``vectors`` (N, B), ``zeros`` (N, m) of ``R a``.

    ``clearance`` (N,) is the smallest singular value that would have to be zero for another vector
    to vanish at the same entries, in standard errors.
    """

    vectors: Tensor
    zeros: Tensor
    clearance: Tensor

    @classmethod
    def none(cls, R: Tensor) -> Directions:
        """Return no vector of the space of ``R`` (m, B)."""
        zeros = torch.zeros(0, len(R), dtype=torch.bool, device=R.device)
        return cls(R[:0], zeros, R.new_zeros(0))

    def __len__(self) -> int:
        return len(self.vectors)


def exact_directions(
    R: Tensor, errors: Tensor, alive: Tensor, a: Tensor, settings: DirectionSettings
) -> Directions:
    """Return those of the vectors that vanish exactly where one sample was off."""
    B, scaled = R.shape[1], R / errors[:, None]
    kept, masks, gaps = [], [], []
    for vector in unit_rows(a):
        zeros = (scaled @ vector).abs() <= settings.zero_errors
        for _ in range(2):  # the fit to the zeros found shows which ones they are
            rows = scaled[zeros & alive]
            if len(rows) < B - 1 + settings.margin:
                break
            values, vectors = torch.linalg.eigh(rows.T @ rows)
            vector = vectors[:, 0]
            zeros = (scaled @ vector).abs() <= settings.zero_errors
        else:
            gap = float(values[1].clamp_min(0).sqrt()) if B > 1 else torch.inf
            least = max(settings.clear, settings.resolved * float(values[-1].clamp_min(0).sqrt()))
            enough = int((zeros & alive).sum()) >= B - 1 + settings.margin
            if enough and gap > least and _leverage(rows, vector) < settings.leverage:
                kept.append(vector)
                masks.append(zeros)
                gaps.append(gap)
    if not kept:
        return Directions.none(R)
    return Directions(torch.stack(kept), torch.stack(masks), R.new_tensor(gaps))


def _leverage(rows: Tensor, vector: Tensor) -> float:
    """Return the largest leverage of a row (n, B) on the vector that all rows are orthogonal to."""
    unit = unit_rows(rows)
    gram = unit.T @ unit + torch.outer(vector, vector) * len(rows)
    return float((unit * torch.linalg.solve(gram, unit.T).T).sum(1).max())


def joined_directions(found: Directions, more: Directions, inverse: Tensor) -> Directions:
    """Return both, without those of the second that the first has already."""
    vectors = torch.cat([found.vectors, more.vectors])
    zeros, gaps = torch.cat([found.zeros, more.zeros]), torch.cat([found.clearance, more.clearance])
    unit = unit_rows(vectors @ inverse.T)
    first = first_of_its_kind(unit, 1 - 1e-6)
    return Directions(vectors[first], zeros[first], gaps[first])
