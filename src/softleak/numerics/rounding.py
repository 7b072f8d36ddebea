"""In which number format a client computed, read off the bits of what it sent.

Under autocast the head's gradient is a product in half precision that is sent as float32: the last
bits of every entry are zero. TF32 shortens only the factors of a product and leaves no such trace;
who used it has to say so.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from softleak.core.head import Head
from softleak.core.share import GradientShare
from softleak.core.vocabulary import Precision

ENOUGH = 32  # entries that are not zero: fewer could end in zeros by chance
LAST_BITS: tuple[tuple[Precision, int], ...] = (("bfloat16", 16), ("float16", 13))


def with_precision(share: GradientShare, head: Head) -> GradientShare:
    """Return the share with the precision it shows, unless the caller states one."""
    if share.precision is not None or head.weight_name not in share:
        return share
    found = recognised_precision(share[head.weight_name])
    return share if found is None else replace(share, precision=found)


def recognised_precision(gradient: Tensor) -> Precision | None:
    """Return the half precision of whose numbers a float32 gradient consists, if there is one."""
    if gradient.dtype is not torch.float32:
        return None
    bits = gradient.contiguous().flatten().view(torch.int32)
    _, least = LAST_BITS[-1]
    if _ends_in_bits(bits[:ENOUGH], least):  # a few entries first: most shares end here
        return None
    if int((gradient != 0).sum()) < ENOUGH:
        return None
    return next((name for name, count in LAST_BITS if not _ends_in_bits(bits, count)), None)


def _ends_in_bits(bits: Tensor, count: int) -> bool:
    """Return whether some of the last ``count`` bits of any number are set."""
    return bool((bits & ((1 << count) - 1)).any())
