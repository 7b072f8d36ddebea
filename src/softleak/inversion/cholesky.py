"""This module factors large matrices by Cholesky's method, in place and by halves.

Most of the work then is products of large matrices, which are faster than LAPACK's factorisation
on some processors, and nothing is copied.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST = 512  # smaller matrices are left to LAPACK
PANELS = 4  # in how many parts the lower half of a symmetric product is computed


def cholesky_in_place(matrix: Tensor) -> bool:
    """Replace the lower half of a matrix by its Cholesky factor, and tell whether there is one.

    Args:
        matrix: A symmetric matrix (n, n), of which only the lower half is read and written. It is
            of no use after a failure.
    """
    size = len(matrix)
    if size <= SMALLEST:
        factor, failed = torch.linalg.cholesky_ex(matrix)
        matrix.copy_(factor)
        return not failed
    half = size // 2
    first, below, last = matrix[:half, :half], matrix[half:, :half], matrix[half:, half:]
    if not cholesky_in_place(first):
        return False
    below.copy_(torch.linalg.solve_triangular(first.mT, below, upper=True, left=False))
    width = -(-len(last) // PANELS)
    for start in range(0, len(last), width):
        rows = below[start:]
        last[start:, start : start + width].addmm_(rows, rows[:width].mT, alpha=-1)
    return cholesky_in_place(last)
