"""This module holds the curvature that L-BFGS remembers, for many problems at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(eq=False)
class History:
    """This is the last m steps of P problems in n unknowns, as a ring buffer for each problem.

    Attributes:
        s: the steps (P, m, n).
        y: the changes of slope over them (P, m, n).
        sy: the products ``s_i · y_j`` of all pairs (P, m, m), in float64.
        yy: the products ``y_i · y_j``, likewise.
        slot: where the next pair goes (P,), which is where the oldest one is.
        floor: a pair with ``s · y`` below this part of ``‖s‖‖y‖`` says nothing of the curvature.
    """

    s: Tensor
    y: Tensor
    sy: Tensor
    yy: Tensor
    slot: Tensor
    floor: float = 1e-10

    @classmethod
    def empty(cls, like: Tensor, length: int) -> History:
        """Return an empty history of this length, for unknowns like (P, n)."""
        count, size = like.shape
        s, y = like.new_zeros(2, count, length, size)
        sy, yy = torch.zeros(2, count, length, length, dtype=torch.double, device=like.device)
        return cls(s, y, sy, yy, torch.zeros(count, dtype=torch.long, device=like.device))

    @property
    def bare(self) -> Tensor:
        """Whether nothing is remembered of each problem, (P,)."""
        return (self.sy.diagonal(dim1=1, dim2=2) == 0).all(1)

    def select(self, rows: Tensor) -> History:
        """Return the history of some problems, given by index or mask."""
        s, y, sy, yy = (part[rows] for part in (self.s, self.y, self.sy, self.yy))
        return History(s, y, sy, yy, self.slot[rows], self.floor)

    def forget(self, rows: Tensor) -> None:
        """Empty the history of the problems of a mask (P,)."""
        if bool(rows.any()):
            for part in (self.s, self.y, self.sy, self.yy):
                part[rows] = 0

    def remember(self, rows: Tensor, s: Tensor, y: Tensor) -> None:
        """Store pairs (P, n) for the problems of a mask, unless they show no curvature."""
        product = (s * y).sum(1)
        curved = rows & (product > self.floor * s.norm(dim=1) * y.norm(dim=1)) & product.isfinite()
        rows = curved.nonzero()[:, 0]
        slot = self.slot[rows]
        self.s[rows, slot], self.y[rows, slot] = s[rows], y[rows]
        of_s = (self.s @ y[..., None])[rows, :, 0].double()
        of_y = (self.y @ torch.stack([s, y], -1))[rows].double()
        self.sy[rows, :, slot], self.sy[rows, slot] = of_s, of_y[..., 0]
        self.yy[rows, :, slot] = self.yy[rows, slot] = of_y[..., 1]
        self.slot[rows] = (slot + 1) % self.sy.shape[1]

    def step(self, slope: Tensor) -> Tensor:
        """Return ``−H g`` (P, n) for slopes ``g`` (P, n).

        ``H`` is the inverse Hessian in its compact form (Byrd, Nocedal and Schnabel 1994, Eq. 2.6).
        """
        sy, yy = self._in_order(self.sy), self._in_order(self.yy)
        curvature = sy.diagonal(dim1=1, dim2=2)
        last = curvature[:, -1] / yy[:, -1, -1]
        gamma = torch.where(last.isfinite() & (last > 0), last, 1.0)[:, None]
        R = sy.triu() + torch.where(curvature == 0, 1.0, 0.0).diag_embed()
        along = ((part @ slope[..., None])[..., 0].double() for part in (self.s, self.y))
        p, q = (self._rolled(product, 1) for product in along)
        a = torch.linalg.solve_triangular(R, p[..., None], upper=True)[..., 0]
        right = curvature * a + gamma * ((yy @ a[..., None])[..., 0] - q)
        b = torch.linalg.solve_triangular(R.mT, right[..., None], upper=False)[..., 0]
        a, b = self._rolled(gamma * a, -1).to(slope), self._rolled(b, -1).to(slope)
        found = (a[:, None] @ self.y)[:, 0] - (b[:, None] @ self.s)[:, 0]
        return torch.addcmul(found, gamma.to(slope), slope, value=-1)

    def _rolled(self, entries: Tensor, way: int) -> Tensor:
        """Return entries (P, m) in order of age, the oldest first; or back if ``way`` is −1."""
        place = torch.arange(entries.shape[1], device=entries.device)
        return entries.gather(1, (place + way * self.slot[:, None]) % entries.shape[1])

    def _in_order(self, products: Tensor) -> Tensor:
        """Return products (P, m, m) with both sides in order of age."""
        place = torch.arange(products.shape[1], device=products.device)
        order = (place + self.slot[:, None]) % products.shape[1]
        each = torch.arange(len(products), device=products.device)[:, None, None]
        return products[each, order[:, :, None], order[:, None, :]]
