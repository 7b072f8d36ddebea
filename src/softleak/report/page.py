"""The page: one self-contained file that needs no network and runs nothing from the inputs."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from softleak._version import __version__
from softleak.atomic import write_text
from softleak.audit.rates import Leak, State
from softleak.audit.reports import Audit
from softleak.audit.verdict import summary
from softleak.audit.words import written
from softleak.report.chart import chart
from softleak.report.machine import finite
from softleak.report.section import Section, section

HERE = "softleak.report"
IN_FULL = 48  # shares shown with everything; the others have a row each
TILES = {  # what each kind of leak is called, and when it counts
    Leak.LABEL: ("label", "named exactly, nearly, or as another reading of the same numbers"),
    Leak.CLASS: ("class", "every label that fits has the same class on top"),
    Leak.FEATURE: ("feature", "the input of the last layer, as the model saw it"),
    Leak.INPUT: ("input", "computed or matched, and recognisable: 20 dB or better"),
    Leak.COMPOSITION: ("class composition", "classes proved to be among the labels"),
}


def write_page(path: str | PathLike[str], audit: Audit) -> None:
    """Write the page, whole or not at all."""
    write_text(Path(path), render(audit))


def render(audit: Audit) -> str:
    """The page as text. Whatever comes from a file is escaped by the template."""
    sections = [
        section(report, number, audit.class_names)
        for number, report in enumerate(audit.reports[:IN_FULL], 1)
    ]
    script = asset("page.js")
    return (
        environment()
        .get_template("page.html")
        .render(
            audit=audit,
            summary=summary(audit),
            tiles=[(audit.count(k), audit.count(k, State.NOT_ATTACKED), *TILES[k]) for k in Leak],
            kinds=Leak,
            sections=sections,
            data=_data(sections),
            style=asset("page.css"),
            script=script,
            script_hash=_hash(script),
            charts=[] if audit.what_if is None else [chart(r) for r in audit.what_if.responses],
            version=__version__,
        )
    )


def _data(sections: list[Section]) -> dict[str, Any]:
    """What the interactive views need, by the id of their section."""
    return {s.id: finite(s.scalar) for s in sections if s.scalar is not None}


@cache
def environment(package: str = HERE) -> Environment:
    """A package's templates, and those here; they escape whatever they are given."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name, "assets") for name in (package, HERE)]),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["size"] = written
    return environment


def asset(name: str) -> str:
    """The text of a file that comes with the page."""
    return resources.files(HERE).joinpath("assets", name).read_text("utf-8")


def _hash(script: str) -> str:
    """What the page's policy allows to run: this script and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
