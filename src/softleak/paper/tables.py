"""All tables, of the paper and beyond, by the name under which each is run."""

from __future__ import annotations

from collections.abc import Mapping

from softleak.paper.experiment import Experiment
from softleak.paper.input_tables import FCN, TABLE3, TABLE4
from softleak.paper.label_tables import BATCH_TABLE, TABLE1, TABLE2
from softleak.paper.leaderboard import LEADERBOARD
from softleak.paper.noise_table import TABLE5

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (TABLE1, TABLE2, TABLE3, TABLE4, TABLE5, FCN, BATCH_TABLE, LEADERBOARD)
}
