"""What is installed: models by name, extras, devices."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, requires, version

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from softleak.environment import versions
from softleak.errors import ModelError
from softleak.head import Head
from softleak.inversion.chain import Chain
from softleak.models import MODELS

EXTRAS = {  # what each brings, by the module it is imported as
    "images": ("PIL", "folders and packs of photos"),
    "metrics": ("skimage", "structural similarity"),
    "dp": ("opacus", "the accountant of DP-SGD"),
    "plots": ("matplotlib", "the paper's figures, pictures of the benchmarks"),
    "ray": ("ray", "cells on a cluster"),
    "flower": ("flwr", "a guard and a monitor in Flower"),
}


def models() -> None:
    """List the models --model knows by name, and what an audit can do with each."""
    table = Table(title="Models by name", title_justify="left")
    for column in ("--model", "input", "parameters", "head", "the input is found by"):
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
    console.print("Your own: --model package.module:factory, any classifier ending in nn.Linear.")


def _way_to_the_input(model: nn.Module, head: Head, shape: tuple[int, ...]) -> str:
    try:
        Chain.of(model, head, shape)
    except ModelError:
        return "gradient matching"
    return "exact inversion"


def doctor() -> None:
    """Say what is installed, which extras, and what there is to compute on."""
    console = Console(highlight=False)
    table = Table.grid(padding=(0, 2))
    for name, value in versions():
        table.add_row(name, value)
    table.add_row("commands run on", f"the CPU, {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name(0)
        table.add_row("from Python also", f"{name}: where the model is, there it is audited")
    for extra, (module, purpose) in EXTRAS.items():
        there = importlib.util.find_spec(module) is not None
        state = "[green]installed[/green]" if there else "missing"
        remedy = "" if there else f": pip install 'softleak\\[{extra}]'"
        table.add_row(f"extra {extra}", f"{state} ({purpose}){remedy}")
    console.print(table)
    console.print(_lacking() or "Everything an audit needs is here.")


def _lacking() -> str:
    """A sentence on packages that are not there; without metadata (a checkout) there is none."""
    try:
        needed = [line for line in requires("softleak") or [] if "extra ==" not in line]
    except PackageNotFoundError:
        return "softleak runs from a checkout; what it requires was not checked."
    missing = [name for name in needed if not _installed(name)]
    return f"Missing: {', '.join(missing)}." if missing else ""


def _installed(requirement: str) -> bool:
    name = requirement.split(";")[0].split(">")[0].split("=")[0].split("[")[0].strip()
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
