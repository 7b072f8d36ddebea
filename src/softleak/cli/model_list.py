"""List the models that ``--model`` knows by name."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from softleak.core.errors import ModelError
from softleak.core.head import Head
from softleak.inversion.chain import Chain
from softleak.paper.models.registry import MODELS


def show_models() -> None:
    """Print a row per model: its input, size and head, and how its input is recovered."""
    table = Table(title="Models by name", title_justify="left")
    for column in ("--model", "input", "parameters", "head", "the input is recovered by"):
        table.add_column(column, justify="right" if column == "parameters" else "left")
    for name, spec in MODELS.items():
        with torch.device("meta"):  # nothing is computed, so nothing is allocated
            model = spec().eval()
        count = sum(p.numel() for p in model.parameters())
        shape, head = "x".join(map(str, spec.input_shape)), Head.of(model)
        way = _way_to_the_input(model, head, spec.input_shape)
        table.add_row(name, shape, f"{count:,}", head.name, way)
    console = Console()
    console.print(table)
    console.print(
        "For your own model give --model package.module:factory; any classifier that ends in an "
        "nn.Linear will do."
    )


def _way_to_the_input(model: nn.Module, head: Head, shape: tuple[int, ...]) -> str:
    try:
        Chain.of(model, head, shape)
    except ModelError:
        return "gradient matching"
    return "exact inversion"
