"""Weight decay taken off a share, as the labels do it, for everything else that reads the share."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from softleak.head import Head
from softleak.labels.decay import Undecayed, without_decay
from softleak.labels.solve import Problem
from softleak.share import GradientShare


def undecayed(
    head: Head, share: GradientShare, parameters: Mapping[str, Tensor]
) -> tuple[Undecayed, ...]:
    """The share without its weight decay, in every way it may have decayed; none if it did not."""
    problem = Problem(head, (), None, share.scale, math.inf, parameters)
    return tuple(without_decay(problem, share))
