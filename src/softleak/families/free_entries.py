"""The entries of a label that a family leaves free: its largest, and those equal to the least."""

from __future__ import annotations

from torch import Tensor

from softleak.errors import LabelError


def check_free(k: int) -> None:
    """Raise ``LabelError`` unless ``k`` is a whole number of classes."""
    if not isinstance(k, int) or k < 1:
        raise LabelError(f"expected a whole number of free classes, at least one; got k={k}")


def top_entries(y: Tensor, k: int) -> Tensor:
    """Return a mask (…, C) of the ``k`` largest entries and of those equal to the least."""
    return y >= kth_largest(y, k)


def below_top(y: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the ``k``-th largest entry (…, 1), and one where an entry (…, C) is less, else zero.

    Numbers instead of a mask: products with them take half the time of a choice.
    """
    least = kth_largest(y, k)
    below = least - y
    return least, (below if k == 1 else below.clamp_min_(0.0)).sign_()


def kth_largest(y: Tensor, k: int) -> Tensor:
    """Return the ``k``-th largest entry (…, 1), or the smallest if there are fewer."""
    if k == 1:
        return y.amax(-1, keepdim=True)
    return y.topk(min(k, y.shape[-1]), sorted=True).values[..., -1:]
