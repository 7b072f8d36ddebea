"""This module writes the page: one file that needs no network and runs nothing of the inputs."""

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
from softleak.auditing.headline import summary
from softleak.auditing.reports import Audit
from softleak.auditing.wording import written
from softleak.report.chart import FRAME, chart
from softleak.report.machine import finite
from softleak.report.section import Section, section
from softleak.report.tiles import tiles
from softleak.vocabulary import Leak

HERE = "softleak.report"
SHARES_IN_FULL = 48  # shares shown with everything; the others have a row each


def write_page(path: str | PathLike[str], audit: Audit) -> None:
    """Write the page of an audit, whole or not at all.

    Args:
        path: the file to write, in a folder that exists.
        audit: the reports to show, and how to do it again.
    """
    write_text(Path(path), render(audit))


def render(audit: Audit) -> str:
    """Return the page as text. Whatever comes from a file is escaped by the template."""
    sections = [
        section(report, number, audit.class_names)
        for number, report in enumerate(audit.reports[:SHARES_IN_FULL], 1)
    ]
    script = asset("page.js")
    return fill(
        "page.html",
        audit=audit,
        summary=summary(audit),
        tiles=tiles(audit.count, len(audit.reports)),
        kinds=Leak,
        sections=sections,
        data=_data(sections),
        script=script,
        script_hash=_hash(script),
        charts=[] if audit.what_if is None else [chart(r) for r in audit.what_if.responses],
        frame=FRAME,
    )


def fill(template: str, package: str = HERE, **values: object) -> str:
    """Return a template with its values filled in, in the style of all pages.

    Args:
        template: the name of a template in the assets of the package, or of this one.
        package: the package whose templates come first.
        values: what the template shows; it escapes them.
    """
    page = environment(package).get_template(template)
    return page.render(style=asset("page.css"), version=__version__, **values)


def _data(sections: list[Section]) -> dict[str, Any]:
    """Return what the interactive views need, by the id of their section."""
    return {s.id: finite(s.scalar) for s in sections if s.scalar is not None}


@cache
def environment(package: str = HERE) -> Environment:
    """Return the templates of a package and those here; they escape whatever they are given."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name, "assets") for name in (package, HERE)]),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["size"] = written
    return environment


def asset(name: str) -> str:
    """Return the text of a file that comes with the page."""
    return resources.files(HERE).joinpath("assets", name).read_text("utf-8")


def _hash(script: str) -> str:
    """Return what the page's policy allows to run: the hash of this script and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
