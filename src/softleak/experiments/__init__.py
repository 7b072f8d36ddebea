"""This package holds the paper's tables, each described by its cells together with the paper's
values.
"""

from softleak.experiments.experiment import Cell, Column, Experiment, Size, Unit
from softleak.experiments.paper_tables import EXPERIMENTS
from softleak.experiments.reproduction import Omission, Reproduction, reproduce
from softleak.experiments.shelf import Shelf
from softleak.experiments.summary import Entry, Row, Table, Verdict, tabulated

__all__ = [
    "EXPERIMENTS",
    "Cell",
    "Column",
    "Entry",
    "Experiment",
    "Omission",
    "Reproduction",
    "Row",
    "Shelf",
    "Size",
    "Table",
    "Unit",
    "Verdict",
    "reproduce",
    "tabulated",
]
