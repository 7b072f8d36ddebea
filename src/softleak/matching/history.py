"""What L-BFGS remembers of the curvature, for many problems at once."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

CURVED = 1e-10  # of |s||y|: what their product is at least, to say something


@dataclass(eq=False)
class History:
    """The last steps ``s`` and changes of slope ``y`` (P, m, n), a ring for every problem."""

    s: Tensor
    y: Tensor
    sy: Tensor  # (P, m, m) products of all pairs, in float64
    yy: Tensor
    slot: Tensor  # (P,) where the next pair goes, which is where the oldest is

    @classmethod
    def empty(cls, like: Tensor, length: int) -> History:
        """Nothing, for unknowns like (P, n)."""
        count, size = like.shape
        s, y = like.new_zeros(2, count, length, size)
        sy, yy = torch.zeros(2, count, length, length, dtype=torch.double, device=like.device)
        return cls(s, y, sy, yy, torch.zeros(count, dtype=torch.long, device=like.device))

    @property
    def bare(self) -> Tensor:
        """(P,) of which problems nothing is remembered."""
        return (self.sy.diagonal(dim1=1, dim2=2) == 0).all(1)

    def select(self, rows: Tensor) -> History:
        """That of some problems."""
        return History(*(getattr(self, field.name)[rows] for field in fields(self)))

    def forget(self, rows: Tensor) -> None:
        """Nothing is remembered of some problems (a mask)."""
        if bool(rows.any()):
            for part in (self.s, self.y, self.sy, self.yy):
                part[rows] = 0

    def remember(self, rows: Tensor, s: Tensor, y: Tensor) -> None:
        """Pairs (P, n) of the problems of a mask, unless they show no curvature."""
        product = (s * y).sum(1)
        curved = rows & (product > CURVED * s.norm(dim=1) * y.norm(dim=1)) & product.isfinite()
        rows = curved.nonzero()[:, 0]
        slot = self.slot[rows]
        self.s[rows, slot], self.y[rows, slot] = s[rows], y[rows]
        of_s = (self.s @ y[..., None])[rows, :, 0].double()
        of_y = (self.y @ torch.stack([s, y], -1))[rows].double()
        self.sy[rows, :, slot], self.sy[rows, slot] = of_s, of_y[..., 0]
        self.yy[rows, :, slot] = self.yy[rows, slot] = of_y[..., 1]
        self.slot[rows] = (slot + 1) % self.sy.shape[1]

    def step(self, slope: Tensor) -> Tensor:
        """``−H g`` (P, n), by the compact form of the inverse (Byrd, Nocedal and Schnabel)."""
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
        """(P, m) from the ring's order to that of age, the oldest first, or back."""
        place = torch.arange(entries.shape[1], device=entries.device)
        return entries.gather(1, (place + way * self.slot[:, None]) % entries.shape[1])

    def _in_order(self, products: Tensor) -> Tensor:
        """(P, m, m) the same of both sides."""
        place = torch.arange(products.shape[1], device=products.device)
        order = (place + self.slot[:, None]) % products.shape[1]
        each = torch.arange(len(products), device=products.device)[:, None, None]
        return products[each, order[:, :, None], order[:, None, :]]
