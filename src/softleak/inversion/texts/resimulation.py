"""This module asks whether a text explains the whole share, by computing its gradient again."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softleak.client import capture
from softleak.errors import SoftleakError
from softleak.input_spec import InputSpec
from softleak.inversion.texts.first_layer import filled
from softleak.share import GradientShare


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
        names = [name for name in self.share if name in made]
        ours = torch.cat([made[name].double().flatten() for name in names])
        sent = torch.cat([self.share[name].double().flatten() for name in names])
        scale = float(ours @ sent) / max(float(ours @ ours), 1e-300)
        return float((sent - scale * ours).norm()) / max(float(sent.norm()), 1e-300)
