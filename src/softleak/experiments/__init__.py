"""The paper's tables and figures, each a description of its cells with the paper's values."""

from softleak.experiments.experiment import Cell, Column, Experiment, Size, Unit
from softleak.experiments.registry import EXPERIMENTS
from softleak.experiments.reproduce import Omission, Outcome, reproduce
from softleak.experiments.shelf import Shelf
from softleak.experiments.summary import Entry, Row, Table, Verdict, tabulated

__all__ = [
    "EXPERIMENTS",
    "Cell",
    "Column",
    "Entry",
    "Experiment",
    "Omission",
    "Outcome",
    "Row",
    "Shelf",
    "Size",
    "Table",
    "Unit",
    "Verdict",
    "reproduce",
    "tabulated",
]
