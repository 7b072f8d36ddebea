"""Show the installation. It imports torch only where a GPU could be found."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from softleak.core.errors import ModelError, how_to_install
from softleak.core.head import Head
from softleak.inversion.chain import Chain
from softleak.io.environment import versions
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


EXTRAS = {  # what each brings, by the module it is imported as
    "images": ("PIL", "folders and packs of photos"),
    "metrics": ("skimage", "structural similarity"),
    "dp": ("opacus", "the privacy accountant of DP-SGD"),
    "plots": ("matplotlib", "the paper's figures, pictures of the benchmarks"),
    "ray": ("ray", "`softleak reproduce` on a cluster"),
    "flower": ("flwr", "a guard and a monitor in Flower"),
    "nvflare": ("nvflare", "a filter in NVIDIA FLARE, and its own filters in --what-if"),
}
GPU_DRIVERS = ("/proc/driver/nvidia", "/dev/kfd")


def show_installation() -> None:
    """Print versions, processors and extras, and whether anything required is missing."""
    console = Console(highlight=False)
    table = Table.grid(padding=(0, 2))
    for name, value in versions():
        table.add_row(name, value)
    table.add_row("commands run on", f"the CPU, {_cores()} cores")
    if gpu := _gpu():
        table.add_row("from Python also", f"{gpu}: a model is audited on the device it is on")
    for extra, (module, purpose) in EXTRAS.items():
        there = importlib.util.find_spec(module) is not None
        state = "[green]installed[/green]" if there else "missing"
        remedy = "" if there else f": {escape(how_to_install(extra))}"
        table.add_row(f"extra {extra}", f"{state} ({purpose}){remedy}")
    console.print(table)
    console.print(_lacking() or "Everything an audit needs is installed.")


def _cores() -> int:
    usable = getattr(os, "sched_getaffinity", None)  # which some systems do not have
    return len(usable(0)) if usable else os.cpu_count() or 1


def may_have_gpu() -> bool:
    """Return whether this machine and this build of torch could have a GPU between them."""
    driver = shutil.which("nvidia-smi") or any(Path(place).exists() for place in GPU_DRIVERS)
    return bool(driver) and not version("torch").endswith("+cpu")


def _gpu() -> str:
    """Return the name of a GPU that torch can use; torch is asked only if there may be one."""
    if not may_have_gpu():
        return ""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""


def _lacking() -> str:
    """Return a sentence on required packages that are missing, or nothing if none is."""
    try:
        needed = [line for line in requires("softleak") or [] if "extra ==" not in line]
    except PackageNotFoundError:
        return "softleak runs from a checkout, so its requirements were not checked."
    missing = [line for line in needed if not is_installed(line)]
    return f"Missing: {', '.join(missing)}. Install them with pip." if missing else ""


def is_installed(requirement: str) -> bool:
    """Return whether the package of a requirement such as ``rich[jupyter]>=13`` is installed."""
    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
