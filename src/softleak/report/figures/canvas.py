"""What a figure is drawn from and where it goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from softleak.atomic import replacing
from softleak.errors import MissingExtra
from softleak.experiments.networks import NETWORKS, Network
from softleak.experiments.shelf import Shelf
from softleak.sweep import Records

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """A figure to be drawn: the shelf, the records so far, the file, and how many images."""

    shelf: Shelf
    records: Records
    path: Path
    samples: int | None = None
    full: bool = False

    def network(self, wanted: str, otherwise: str) -> tuple[str, Network]:
        """The paper's network, or one whose files are at hand."""
        name = otherwise if NETWORKS[wanted].lacking(self.shelf) else wanted
        return name, NETWORKS[name]

    def save(self, figure: Figure) -> None:
        """Write the picture, whole or not at all."""
        with replacing(self.path) as temporary:
            figure.savefig(temporary, dpi=110, format="png")
        pyplot().close(figure)


def pyplot() -> ModuleType:
    """matplotlib, without a window."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra("figures need matplotlib: pip install 'softleak[plots]'") from error
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt
