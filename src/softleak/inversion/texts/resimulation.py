"""This module asks whether a text explains the whole share, by computing its gradient again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor, nn

from softleak.client import capture
from softleak.errors import SoftleakError
from softleak.input_spec import Inputs, InputSpec, assembled, pieces
from softleak.inversion.texts.first_layer import filled
from softleak.share import GradientShare

MOST_TEXTS = 4  # of which every order of labels is tried


@dataclass(frozen=True, eq=False)
class TextResimulation:
    """This compares the gradient of a text with a share.

    Attributes:
        model: the model, in the mode the client used.
        spec: what its inputs look like.
        share: what the client sent.
        label: (C,) the label that was recovered from the share.
    """

    model: nn.Module
    spec: InputSpec
    share: GradientShare
    label: Tensor

    def misfit(self, tokens: Tensor) -> float:
        """Return what a text (L,) leaves of the share, relative to its size and at any scale."""
        try:
            label = self.label.clamp_min(0) / self.label.clamp_min(0).sum()
            made = capture(self.model, filled(self.spec, tokens), label)
        except SoftleakError:
            return math.inf
        return misfit(self.share, made)


def misfit(share: GradientShare, made: GradientShare) -> float:
    """Return what a gradient leaves of a share, relative to its size and at any scale."""
    names = [name for name in share if name in made]
    ours = torch.cat([made[name].double().flatten() for name in names])
    sent = torch.cat([share[name].double().flatten() for name in names])
    scale = float(ours @ sent) / max(float(ours @ ours), 1e-300)
    return float((sent - scale * ours).norm()) / max(float(sent.norm()), 1e-300)


def batch_misfit(
    model: nn.Module,
    spec: InputSpec,
    share: GradientShare,
    texts: Sequence[Sequence[int]],
    labels: Tensor,
) -> float:
    """Return what several texts leave of a share, with the order of labels (B, C) that fits best.

    It is infinite if there is not one label for each text. Shorter texts are padded as the model's
    own configuration says, with the token 0 if it has none.
    """
    if len(texts) != len(labels) or len(texts) > MOST_TEXTS:
        return math.inf
    x = _padded(spec, texts, getattr(getattr(model, "config", None), "pad_token_id", None) or 0)
    labels = labels.clamp_min(0) / labels.clamp_min(0).sum(1, keepdim=True)
    best = math.inf
    for order in permutations(range(len(labels))):
        try:
            best = min(best, misfit(share, capture(model, x, labels[list(order)])))
        except SoftleakError:
            return math.inf
    return best


def _padded(spec: InputSpec, texts: Sequence[Sequence[int]], empty: int) -> Inputs:
    """Return a batch of texts of different lengths, with masks of zeros behind their ends."""
    length = max(map(len, texts))
    ids = torch.tensor([[*text, *[empty] * (length - len(text))] for text in texts])
    held = dict(pieces(filled(spec, ids)))
    used = torch.tensor([[1] * len(text) + [0] * (length - len(text)) for text in texts])
    masks = {part.keyword: used for part in spec.parts if part.below is None}
    return assembled({**held, **masks})
