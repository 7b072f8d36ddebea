"""This module pairs the samples of a recovered batch with the true ones, whose order is lost."""

from __future__ import annotations

import torch
from torch import Tensor

from softleak.errors import DataError
from softleak.metrics.image_quality import psnr


def pairing(cost: Tensor) -> list[int]:
    """Return the column of each row so that the sum of the costs is least (the Hungarian method).

    Rows are added one by one. Each takes the shortest path of exchanges to a column that is still
    free, and potentials keep all reduced costs at zero or above.

    Args:
        cost: finite costs (N, M), with no more rows than columns.
    """
    rows, columns = cost.shape if cost.ndim == 2 else (1, 0)
    if rows > columns or not bool(cost.isfinite().all()):
        raise DataError(
            f"expected finite costs (N, M) with N at most M, got shape {tuple(cost.shape)}"
        )
    costs = cost.detach().cpu().double()
    of_rows, of_columns = costs.new_zeros(rows), costs.new_zeros(columns)
    owner = [-1] * columns
    for first in range(rows):
        slack = costs.new_full((columns,), torch.inf)
        before = torch.full((columns,), -1)
        visited = torch.zeros(columns, dtype=torch.bool)
        row, column = first, -1
        while row >= 0:
            reduced = costs[row] - of_rows[row] - of_columns
            nearer = ~visited & (reduced < slack)
            slack, before = (
                slack.where(~nearer, reduced),
                before.where(~nearer, torch.tensor(column)),
            )
            column = int(slack.where(~visited, torch.inf).argmin())
            step = float(slack[column])
            of_rows[[first, *(owner[j] for j in visited.nonzero()[:, 0])]] += step
            of_columns[visited] -= step
            slack[~visited] -= step
            visited[column] = True
            row = owner[column]
        while column >= 0:
            last = int(before[column])
            owner[column] = owner[last] if last >= 0 else first
            column = last
    return [owner.index(row) for row in range(rows)]


def paired_psnr(images: Tensor, truths: Tensor) -> list[float]:
    """Return the PSNR in dB of each true image, paired so that their sum is largest.

    Args:
        images: the reconstructions (M, …), pixels in [0, 1].
        truths: the true images (N, …), at most as many.
    """
    table = [[psnr(image, truth) for image in images] for truth in truths]
    columns = pairing(-torch.tensor(table, dtype=torch.double).reshape(len(truths), len(images)))
    return [row[column] for row, column in zip(table, columns, strict=True)]
