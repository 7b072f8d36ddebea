"""Where cells run: this process, processes, a Ray cluster; and the durable records of them."""

from softleak.sweep.cluster import Cluster
from softleak.sweep.engine import Engine, Local
from softleak.sweep.piece import Compute, Measures, Piece, Record, numbers
from softleak.sweep.processes import Processes
from softleak.sweep.records import Records
from softleak.sweep.run import Progress, sweep

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
