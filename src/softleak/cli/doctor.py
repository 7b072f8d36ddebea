"""Show the installation. It imports torch only where a GPU could be found."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from softleak.core.environment import versions
from softleak.core.errors import how_to_install

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
