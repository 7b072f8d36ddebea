"""All tables, of the paper and beyond, by the name under which each is run."""

from __future__ import annotations

from collections.abc import Mapping

from softleak.experiments.batch_table import BATCH_TABLE
from softleak.experiments.experiment import Experiment
from softleak.experiments.fcn_table import FCN
from softleak.experiments.leaderboard import LEADERBOARD
from softleak.experiments.table1 import TABLE1
from softleak.experiments.table2 import TABLE2
from softleak.experiments.table3 import TABLE3
from softleak.experiments.table4 import TABLE4
from softleak.experiments.table5 import TABLE5

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (TABLE1, TABLE2, TABLE3, TABLE4, TABLE5, FCN, BATCH_TABLE, LEADERBOARD)
}
