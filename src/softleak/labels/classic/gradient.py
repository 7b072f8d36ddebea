"""The one thing every classic method starts from."""

from __future__ import annotations

from torch import Tensor, nn

from softleak.factors import head_gradients
from softleak.head import Head
from softleak.share import GradientShare
from softleak.verify import find_head


def head_gradient(
    model: nn.Module, share: GradientShare, head: str | Head | None
) -> tuple[Head, Tensor]:
    """The head and the gradient of its weight (C, I), finite, in the dtype it came in."""
    share.check_finite()
    found = head if isinstance(head, Head) else find_head(model, head, share.input_shape)
    return found, head_gradients(found, [share])[0]
