"""This module declares the options of ``softleak diff``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option


@dataclass(frozen=True)
class DiffOptions:
    """These are the options of ``softleak diff``."""

    before: Annotated[Path, Argument(metavar="A.JSON", help="The audit.json of the earlier audit.")]
    after: Annotated[Path, Argument(metavar="B.JSON", help="The audit.json of the later audit.")]
    as_json: Annotated[
        bool, Option("--json", help="Print the difference as JSON instead of tables.")
    ] = False
    fail_on_worse: Annotated[
        bool,
        Option(
            "--fail-on-worse",
            help="Exit with code 3 if something leaks that did not, or if something is not "
            "attacked any more, whether it leaked before or not.",
        ),
    ] = False
