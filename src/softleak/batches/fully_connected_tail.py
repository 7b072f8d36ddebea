"""This module makes a model of the fully connected layers at the end of a network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from softleak.subject import Subject


class FullyConnectedTail(nn.Module):
    """These are linear layers with ReLUs between, under the names that they have in a network."""

    def __init__(self, layers: Sequence[tuple[str, nn.Module]]) -> None:
        super().__init__()
        self._in_order = tuple(name for name, _ in layers)
        for name, layer in layers:
            *folders, last = name.split(".")
            at: nn.Module = self
            for folder in folders:
                if folder not in dict(at.named_children()):
                    at.add_module(folder, nn.Module())
                at = at.get_submodule(folder)
            at.add_module(last, layer)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, C) of what enters the first layer (N, n)."""
        for name in self._in_order[:-1]:
            x = torch.relu(self.get_submodule(name)(x))
        logits: Tensor = self.get_submodule(self._in_order[-1])(x)
        return logits


def tail_of(subject: Subject, layers: Sequence[str]) -> FullyConnectedTail:
    """Return the tail of a network that begins with these layers and ends with its head."""
    names = [*layers, subject.head.name]
    return FullyConnectedTail([(name, subject.model.get_submodule(name)) for name in names])
