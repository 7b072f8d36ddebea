"""The head and its gradient, which every classic method starts from."""

from __future__ import annotations

from torch import Tensor, nn

from softleak.factors import head_gradients
from softleak.head import Head
from softleak.share import GradientShare
from softleak.subject import Subject


def head_gradient(
    model: nn.Module, share: GradientShare, head: str | Head | None
) -> tuple[Head, Tensor]:
    """Return the model's head and the gradient of its weight (C, I), in the dtype it came in.

    Raises:
        HeadNotFound: if no linear layer does what the attacks assume.
        MissingGradient: if the share lacks the gradient of the head.
        NonFinite: if an entry of the share is not a finite number.
    """
    share.check_finite()
    found = Subject.of(model, share.input_shape, head=head).head
    return found, head_gradients(found, [share])[0]
