"""Eq. 4 in one scalar: the label that each ``t`` would mean, with the error rounding leaves in it.

δ = t u        x = (σ/t) v        ŷ(t) = softmax((σ/t) W v + b) − t u
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from softleak.core.factors import Factors
from softleak.core.head import Head
from softleak.labels.curve import CACHED_ENTRIES, Interval, density_for

# What bounds the scalar and the rounding of a pseudo label.
# A smaller t changes no label by as much as anyone could notice.
PSEUDO_LABEL_SMALLEST_SCALAR = 1e-4
# Roundings in a logit, whose sum the client may take in any order.
PSEUDO_LABEL_LOGIT_ROUNDINGS = 4.0
PSEUDO_LABEL_LANES = 16  # sums that a processor takes at once
PSEUDO_LABEL_DEEPEST_LOGIT = 100.0


LARGEST = math.sqrt(2)  # ‖p − y‖₂ of two points of the simplex


@dataclass(frozen=True, eq=False)
class PseudoLabels:
    """Ŷ(t) of N clients. ``a = σ W v`` and ``u`` are (N, C), ``b`` (C,), the rest (N,)."""

    a: Tensor
    b: Tensor
    u: Tensor
    relative: float
    tiny: float
    slack: Tensor  # the rounding of u's entries beyond their own size
    reach: Tensor  # how far rounding moves a logit at t = 1
    offset: float  # and at any t

    @classmethod
    @torch.inference_mode()
    def of(cls, head: Head, factors: Factors) -> PseudoLabels:
        """Return the curves behind a batch of head gradients."""
        a = factors.sigma[:, None] * head.logits(factors.v)
        slack = factors.absolute / factors.sigma
        reach = (
            PSEUDO_LABEL_LOGIT_ROUNDINGS
            * factors.relative
            * (factors.sigma * head.largest_weight + a.abs().amax(-1))
        )
        return cls(
            a, head.b, factors.u, factors.relative, factors.tiny, slack,
            reach + head.largest_row * factors.absolute,
            PSEUDO_LABEL_LOGIT_ROUNDINGS * factors.relative * float(head.b.abs().amax()),
        )  # fmt: skip

    def probabilities(self, t: Tensor) -> Tensor:
        """Return softmax((σ/t) W v + b) at ``t`` (N, S), as (N, S, C)."""
        return torch.softmax(torch.addcdiv(self.b, self._a, t[..., None]), dim=-1)

    def labels(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return self.probabilities(t).addcmul_(t[..., None], self._u, value=-1), t.abs()

    def errors(self, t: Tensor, y: Tensor) -> Tensor:
        """Return ``rounding`` of labels of this curve: ``p − y`` is ``t u``, which saves passes."""
        return self.first_errors(t, y)

    def first_errors(self, t: Tensor, y: Tensor) -> Tensor:
        """Return the errors (N, S, E) of the first entries ``y`` (N, S, E) of labels."""
        t, first = t[..., None], y.shape[-1]
        size = t.abs()
        p = torch.addcmul(y, t, self._u[..., :first])
        moved = self._reach / size + self.offset
        # p (moved (1 − p) + summed) as moved p (1 + summed/moved − p), for which passes are fast.
        summed = self.relative * _summed(self.u.shape[-1])
        curved = torch.sub(1 + summed / moved, p).mul_(p)
        rounded = torch.mul(size, self._rounding_of_u[..., :first]).add_(self.tiny)
        return rounded.addcmul_(curved, moved)

    @cached_property
    def _a(self) -> Tensor:
        """Return ``a`` as (N, 1, C)."""
        return self.a[:, None]

    @cached_property
    def _u(self) -> Tensor:
        """Return ``u`` as (N, 1, C)."""
        return self.u[:, None]

    @cached_property
    def _reach(self) -> Tensor:
        """Return ``reach`` as (N, 1, 1)."""
        return self.reach[:, None, None]

    @cached_property
    def _rounding_of_u(self) -> Tensor:
        """Return the rounding (N, 1, C) of ``u``'s entries."""
        size: Tensor = torch.linalg.vector_norm(self._u, dim=-1, keepdim=True)
        return self.relative * self._u.abs() + self.slack[:, None, None] * size

    def rounding(self, t: Tensor, p: Tensor, y: Tensor) -> Tensor:
        """Return the error of the entries of ``y``, given the probabilities it came from."""
        return self.rounding_of(t, p - y, p, p * (1 - p))

    def rounding_of(self, t: Tensor, delta: Tensor, p: Tensor, curved: Tensor) -> Tensor:
        """Return the error of ``p − δ``, where ``curved`` is how much p moves with its logits."""
        moved = self._reach / t.abs()[..., None] + self.offset
        rounded = self.relative * (delta.abs() + _summed(p.shape[-1]) * p) + curved * moved
        size: Tensor = torch.linalg.vector_norm(delta, dim=-1, keepdim=True)
        return rounded + self.slack[:, None, None] * size + self.tiny

    @property
    def points_at_once(self) -> int:
        return max(CACHED_ENTRIES // self.u.shape[-1], 1)

    def logits(self) -> Tensor:
        return self.a

    def take(self, rows: Tensor) -> PseudoLabels:
        """Return the curves of some clients; that of a single client as it is, for any rows.

        Its tensors are those of one row then, which serve the scalars (K, S) of all.
        """
        return self if len(self.u) == 1 else self.take_each(rows)

    def take_each(self, rows: Tensor) -> PseudoLabels:
        """Return the curves of some clients, a row of memory each."""
        taken = PseudoLabels(
            self.a[rows], self.b, self.u[rows], self.relative, self.tiny,
            self.slack[rows], self.reach[rows], self.offset,
        )  # fmt: skip
        vars(taken)["_rounding_of_u"] = self._rounding_of_u[rows]  # known, and need not be again
        return taken

    def interval(self, largest: Tensor | None = None) -> Interval:
        """Return the scalars ``t`` of both signs, from where the softmax is one-hot to the last bit
        to √2.
        """
        ordered = self.a.sort(-1).values
        gaps = torch.stack([ordered[:, -1] - ordered[:, -2], ordered[:, 1] - ordered[:, 0]])
        width = ordered[:, -1] - ordered[:, 0]
        deepest = max(PSEUDO_LABEL_DEEPEST_LOGIT, -math.log(self.tiny) - math.log(self.relative))
        smallest = gaps.maximum(1e-6 * width).clamp_min(self.tiny) / deepest
        ends = (
            torch.full_like(width, LARGEST)
            if largest is None
            else largest.clamp_min(PSEUDO_LABEL_SMALLEST_SCALAR)
        )
        everyone = torch.arange(len(width), device=width.device)
        signs = torch.tensor([1.0, -1.0], dtype=width.dtype, device=width.device)
        return Interval(
            everyone.repeat(2),
            signs.repeat_interleave(len(width)),
            smallest.minimum(PSEUDO_LABEL_SMALLEST_SCALAR * ends).flatten(),
            ends.repeat(2),
            density_for(self.a.shape[-1]),
        )


def _summed(classes: int) -> float:
    """Return roundings in a probability, a quotient of sums, times the sum of a label's entries.

    They are independent, but for equal entries of a label, which all round alike as they are added.
    """
    return 1 + math.sqrt(classes) / PSEUDO_LABEL_LANES + max(classes / PSEUDO_LABEL_LANES - 1, 0)
