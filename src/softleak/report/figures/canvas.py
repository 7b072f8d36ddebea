"""This module says what a figure is drawn from, and where it goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from softleak.atomic import replacing
from softleak.errors import MissingExtra, how_to_install
from softleak.experiments.networks import NETWORKS, Network
from softleak.experiments.shelf import Shelf
from softleak.sweep import Records

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """This is a figure to be drawn.

    Attributes:
        shelf: the data sets and trained networks at hand.
        records: what was measured so far.
        path: the file to write.
        samples: how many images are shown, if not as many as the paper shows.
        full: whether gradient matching takes as many steps as in the paper.
    """

    shelf: Shelf
    records: Records
    path: Path
    samples: int | None = None
    full: bool = False

    def network(self, wanted: str, otherwise: str) -> tuple[str, Network]:
        """Return name and network: the paper's, or another one whose files are at hand."""
        name = otherwise if NETWORKS[wanted].lacking(self.shelf) else wanted
        return name, NETWORKS[name]

    def save(self, figure: Figure) -> None:
        """Write the picture, whole or not at all."""
        with replacing(self.path) as temporary:
            figure.savefig(temporary, dpi=110, format="png")
        pyplot().close(figure)


def pyplot() -> ModuleType:
    """Return matplotlib's pyplot, which opens no window; raises ``MissingExtra`` without it."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra(f"figures need matplotlib: {how_to_install('plots')}") from error
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt
