"""Which inputs a model takes, where that is not stated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from softleak.core.errors import ModelError
from softleak.core.forward import forward_one
from softleak.core.input_spec import (
    POSITIONAL,
    Inputs,
    InputSpec,
    Layout,
    Shape,
    layout_of,
    pieces,
    random_tokens,
)
from softleak.numerics.recorder import watched


@dataclass(frozen=True, eq=False)
class TableWatch:
    """What entered each ``nn.Embedding`` of a model, and the table's size."""

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
        place = tensor.data_ptr()
        pairs = [(name, rows) for name, rows, seen in self.calls if seen.data_ptr() == place]
        if not pairs and not bool((tensor == tensor.flatten()[:1]).all()):  # as a mask of ones is
            flat = tensor.flatten()
            pairs = [(n, rows) for n, rows, seen in self.calls if torch.equal(seen.flatten(), flat)]
        return pairs


@contextmanager
def watched_tables(model: nn.Module) -> Iterator[TableWatch]:
    """Watch the embedding tables of a model while it runs."""
    watch = TableWatch()

    def look(name: str, inputs: tuple[Tensor, ...]) -> None:
        if inputs and isinstance(inputs[0], Tensor):
            watch.calls.append((name, tables[name].num_embeddings, inputs[0].detach()))

    # A subclass with a forward of its own may make positions of a mask, instead of looking up rows.
    embeddings = {n: m for n, m in model.named_modules() if isinstance(m, nn.Embedding)}
    tables = {n: m for n, m in embeddings.items() if type(m).forward is nn.Embedding.forward}
    with watched(tables, before=look):
        yield watch


IMAGE_SIZES = (32, 28, 64, 96, 128, 224, 256, 299, 384)
TOKEN_KEYWORDS = ("input_ids", POSITIONAL)
SEQUENCE_LENGTHS = (16, 24)


def accepted_shapes(model: nn.Module) -> Iterator[Layout]:
    """Return inputs the model accepts, by what its layers take.

    Images are tried in usual sizes, and sequences of tokens where the model has a table for them.
    """
    shapes: dict[tuple[int, ...], None] = {}  # ordered: the first layer defined is likely the first
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            shapes |= dict.fromkeys((module.in_channels, size, size) for size in IMAGE_SIZES)
        elif isinstance(module, nn.Linear):
            shapes |= dict.fromkeys([(module.in_features,), *_images_of(module.in_features)])
    yield from (shape for shape in shapes if _takes(model, shape))
    if any(isinstance(module, nn.Embedding) for module in model.modules()):
        yield from _token_layouts(model)


def _takes(model: nn.Module, shape: tuple[int, ...]) -> bool:
    try:
        with torch.no_grad():
            forward_one(model, torch.zeros(shape))
    except ModelError:
        return False
    return True


def _token_layouts(model: nn.Module) -> Iterator[Layout]:
    """Yield the layouts of token sequences that the model takes, for the first keyword it knows."""
    for keyword in TOKEN_KEYWORDS:
        found = [one for n in SEQUENCE_LENGTHS if (one := _token_layout(model, keyword, n))]
        yield from found
        if found:
            return


def _token_layout(model: nn.Module, keyword: str, length: int) -> Layout | None:
    ids = torch.zeros(length, dtype=torch.long)
    try:
        with torch.no_grad(), watched_tables(model) as watch:
            _, batched = forward_one(model, ids if keyword == POSITIONAL else {keyword: ids})
    except ModelError:
        return None
    layout = layout_of(batched, watch.tables(batched))
    known = isinstance(layout, InputSpec) and any(part.below for part in layout.parts)
    return layout if known else None


def _images_of(features: int) -> Iterator[tuple[int, ...]]:
    for channels in (1, 3):
        side = round((features / channels) ** 0.5)
        if channels * side * side == features:
            yield (channels, side, side)


def random_input(layout: Layout, index: int, generator: torch.Generator) -> Inputs:
    """Return random tokens, or noise, fine or coarse in turn.

    Coarse noise looks more like a picture to a convolution.
    """
    if isinstance(layout, InputSpec):
        return random_tokens(layout, index, generator)
    return random_tensor(layout, index, generator)


def random_tensor(shape: Shape, index: int, generator: torch.Generator) -> Tensor:
    """Return noise of this shape, fine or coarse in turn."""
    if len(shape) == 3 and index % 2:
        small = torch.randn(1, shape[0], 4, 4, generator=generator)
        return nn.functional.interpolate(small, shape[1:], mode="bilinear")[0]
    return torch.randn(shape, generator=generator)
