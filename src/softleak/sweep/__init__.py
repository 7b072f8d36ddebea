"""This package runs many samples (here, in processes, on a Ray cluster) and records them."""

from softleak.sweep.cluster import Cluster
from softleak.sweep.engine import Engine, Local
from softleak.sweep.piece import Compute, Measures, Piece, Record, numbers
from softleak.sweep.processes import Processes
from softleak.sweep.records import Records
from softleak.sweep.run_sweep import Progress, sweep

__all__ = [
    "Cluster",
    "Compute",
    "Engine",
    "Local",
    "Measures",
    "Piece",
    "Processes",
    "Progress",
    "Record",
    "Records",
    "numbers",
    "sweep",
]
