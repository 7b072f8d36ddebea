"""The frameworks of attacks beside which softleak is measured, and why one of them was not run.

breaching imports torchvision. A build of torchvision whose compiled operators do not fit torch
cannot be imported, only because it describes two of them, which the attack never calls. Both are
then declared without being implemented, so that nothing could compute with them by mistake.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from types import ModuleType

from torch.library import define

from softleak.errors import MissingExtra, how_to_install, in_a_line
from softleak.experiments.experiment import Experiment

BREACHING = "breaching (inverting gradients)"
UNDECLARED = "operator torchvision::"  # how torch's complaint about such an operator begins
BOX_OPERATORS = ("nms", "qnms")


def breaching() -> ModuleType:
    """Return the framework; raises ``MissingExtra`` if it does not import."""
    try:
        try:
            import_module("breaching.attacks")
        except RuntimeError as error:
            if UNDECLARED not in str(error):
                raise
            _declare_operators()
            import_module("breaching.attacks")
    except ImportError as error:
        raise MissingExtra(
            f"breaching is not installed ({in_a_line(error)}): {how_to_install('breaching')}"
        ) from error
    except RuntimeError as error:
        raise MissingExtra(f"breaching does not import: {in_a_line(error)}") from error
    return import_module("breaching")


@cache
def _declare_operators() -> None:
    """Declare torchvision's operators on boxes to torch, once in a process."""
    for name in BOX_OPERATORS:
        define(
            f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )


def runnable(experiment: Experiment, only: str = "") -> Experiment:
    """Return an experiment without breaching's cells if breaching does not import.

    Args:
        experiment: the experiment.
        only: a part of the names of the cells that are asked for.

    Raises:
        MissingExtra: if no other cells are asked for.
    """
    others = tuple(cell for cell in experiment.cells if BREACHING not in cell.name)
    theirs = [cell.name for cell in experiment.cells if BREACHING in cell.name]
    if not any(only in name for name in theirs):
        return experiment
    try:
        breaching()
    except MissingExtra:
        if not any(only in cell.name for cell in others):
            raise
        return replace(experiment, cells=others)
    return experiment


def frameworks_left_out() -> str:
    """Say of each framework of attacks that was not run why not."""
    leakpro = (
        "LeakPro was not run: the package leakpro 0.0.1 is empty, and softleak has no adapter to "
        "LeakPro's repository."
    )
    try:
        breaching()
    except MissingExtra as error:
        return f"One attack was not run: {error}. {leakpro}"
    return leakpro
