"""Run many samples (here, in processes, on a Ray cluster) and record them."""

from softleak.paper.sweep.engines import Cluster, Processes
from softleak.paper.sweep.records import (
    Compute,
    Engine,
    Local,
    Measures,
    Piece,
    Progress,
    Record,
    Records,
    numbers,
    sweep,
)

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
