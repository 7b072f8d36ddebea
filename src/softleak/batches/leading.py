"""This module finds points at which one class leads by a given amount.

A trained network is sure of most of its samples. Their logits have a class that leads, and by how
much decides how far a label is told by its gradient. Starting points therefore cover all leads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from softleak.batches.head_space import SHORTEST_VECTOR
from softleak.batches.one_sample import SampleSystem

HALVINGS = 60  # of the interval that holds the length of a step; the last bit of a double is 52
LONGEST_STEP = 1e4  # in units of a step that raises one logit by one


def leading_points(system: SampleSystem, leaders: Tensor, leads: Tensor) -> Tensor:
    """Return points ``β`` (n, K) where a class leads the sum of all others by ``leads`` (n,).

    The direction of the step is the one that raises the logit of ``leaders`` (n,) most. If another
    class ends up ahead, it is the one that leads: in few dimensions not every class can.
    """
    M, offset = system.logits
    if not M.shape[1]:
        return M.new_zeros(len(leaders), 0)
    centred = M - M.mean(0)
    wanted = torch.eye(len(M), dtype=M.dtype, device=M.device)[leaders.to(M.device)]
    step = wanted @ torch.linalg.pinv(centred).T
    raised = step @ centred.T
    step = step / raised.abs().amax(-1, keepdim=True).clamp_min(SHORTEST_VECTOR)
    raised = step @ M.T
    top, leads = raised.argmax(-1, keepdim=True), leads.to(M.device)
    low, high = torch.zeros_like(leads), torch.full_like(leads, LONGEST_STEP)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        logits = middle[:, None] * raised + offset
        ahead = logits.gather(-1, top)[:, 0]
        others = logits.scatter(-1, top, -torch.inf).logsumexp(-1)
        short = ahead - others < leads
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return torch.mul(low[:, None], step)
