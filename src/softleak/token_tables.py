"""This module finds out which embedding table each integer input of a model points into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from softleak.input_spec import Inputs, pieces


@dataclass(frozen=True, eq=False)
class TableWatch:
    """This records what entered each ``nn.Embedding`` of a model, and the table's size."""

    calls: list[tuple[str, int, Tensor]] = field(default_factory=list)

    def tables(self, batched: Inputs) -> dict[str, int]:
        """Return the number of rows of the table that each integer tensor went into, by keyword.

        A tensor is known again by its memory, else by its values.
        """
        integers = {k: t for k, t in pieces(batched) if not t.is_floating_point()}
        sizes = {keyword: [rows for _, rows in self.read(t)] for keyword, t in integers.items()}
        return {keyword: min(rows) for keyword, rows in sizes.items() if rows}

    def read(self, tensor: Tensor) -> list[tuple[str, int]]:
        """Return the name and the number of rows of each table that a tensor went into."""
        pairs = [(name, rows) for name, rows, seen in self.calls if _same(seen, tensor)]
        if not pairs and not bool((tensor == tensor.flatten()[:1]).all()):  # as a mask of ones is
            pairs = [(name, rows) for name, rows, seen in self.calls if _equal(seen, tensor)]
        return pairs


@contextmanager
def watched_tables(model: nn.Module) -> Iterator[TableWatch]:
    """Watch the embedding tables of a model while it runs."""
    watch = TableWatch()

    def look(name: str, table: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if isinstance(table, nn.Embedding) and inputs and isinstance(inputs[0], Tensor):
            watch.calls.append((name, table.num_embeddings, inputs[0].detach()))

    tables = {n: module for n, module in model.named_modules() if _looks_up(module)}
    handles = [t.register_forward_pre_hook(partial(look, n)) for n, t in tables.items()]
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


def _looks_up(module: nn.Module) -> bool:
    """Return whether a module looks up its rows; a subclass may make positions of a mask."""
    return isinstance(module, nn.Embedding) and type(module).forward is nn.Embedding.forward


def _same(seen: Tensor, tensor: Tensor) -> bool:
    return seen.data_ptr() == tensor.data_ptr()


def _equal(seen: Tensor, tensor: Tensor) -> bool:
    return seen.numel() == tensor.numel() and bool(torch.equal(seen.flatten(), tensor.flatten()))
