"""Classifiers that are built anew: a table that is used twice, and adapters that train alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def tied(model: nn.Module) -> nn.Module:
    """Let the table of words also enter the last linear layer, as a language model's head does."""
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    table = max(tables, key=lambda one: one.num_embeddings)
    head = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]

    def again(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0] + torch.tanh(table.weight).mean(), *inputs[1:])

    head.register_forward_pre_hook(again)
    return model


class Adapter(nn.Module):
    """A linear layer that is frozen, and two small matrices beside it that are trained."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.base(x) + self.up(self.down(x))
        return made


def adapted(model: nn.Module) -> nn.Module:
    """Freeze a model but for its last linear layer, and put adapters beside all others."""
    model.requires_grad_(False)
    linear = [name for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    model.get_submodule(linear[-1]).requires_grad_(True)
    for name in linear[:-1]:
        owner, _, key = name.rpartition(".")
        base = model.get_submodule(name)
        if isinstance(base, nn.Linear):
            setattr(model.get_submodule(owner), key, Adapter(base))
    return model.eval()
