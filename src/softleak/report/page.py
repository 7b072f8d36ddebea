"""This module writes the page: one file that needs no network and runs nothing of the inputs."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from softleak._version import __version__
from softleak.atomic import write_text
from softleak.auditing.advice import advice
from softleak.auditing.catalogue import every_attack
from softleak.auditing.headline import summary
from softleak.auditing.reports import Audit, AuditReport
from softleak.auditing.severity import severity_of_audit, severity_of_share
from softleak.auditing.wording import written
from softleak.report.chart import FRAME, chart
from softleak.report.machine import finite
from softleak.report.section import Section, section
from softleak.report.share_rows import share_row
from softleak.report.tiles import tiles
from softleak.vocabulary import Leak

HERE = "softleak.report"
OPTION = re.compile(r"(--[a-z][a-z-]*)")
ROWS_AT_ONCE = 100  # rows of the table that are there before anybody asks for more
SHARES_IN_FULL = 48  # shares shown with everything, the most severe; the others have a row each


@dataclass(frozen=True)
class PagePart:
    """This is one section of the page.

    Attributes:
        id: where links lead.
        title: its heading, which the list of contents repeats.
        template: what it shows, in the assets.
        shown: whether an audit has something to show there.
    """

    id: str
    title: str
    template: str
    shown: Callable[[Audit], bool] = lambda _: True


# The sections of the page, in their order. A new one is a template and a line here.
PAGE_PARTS: list[PagePart] = [
    PagePart("defences", "What would stop it", "sections/defences.html"),
    PagePart("shares", "All shares", "sections/shares.html", lambda audit: len(audit.reports) > 1),
    PagePart("refused", "Not audited", "sections/refused.html", lambda audit: bool(audit.refused)),
    PagePart("details", "In detail", "sections/details.html", lambda audit: bool(audit.reports)),
    PagePart("again", "Run it again", "sections/again.html"),
]
# What is told of each share, in this order. Templates see the share as s and its report as r.
SHARE_PARTS: list[str] = [
    "share/verdict.html",
    "share/samples.html",
    "share/findings.html",
    "share/scalar.html",
    "share/precision.html",
    "share/attacks.html",
    "share/assumptions.html",
]


def write_page(path: str | PathLike[str], audit: Audit) -> None:
    """Write the page of an audit, whole or not at all.

    Args:
        path: the file to write, in a folder that exists.
        audit: the reports to show, and how to do it again.
    """
    write_text(Path(path), render(audit))


def render(audit: Audit) -> str:
    """Return the page as text. Whatever comes from a file is escaped by the template."""
    names = audit.class_names
    sections = [section(r, number, names) for number, r in enumerate(_in_full(audit.reports), 1)]
    places = {id(s.report): s.id for s in sections}
    script = asset("page.js")
    return fill(
        "page.html",
        audit=audit,
        summary=summary(audit),
        severity=severity_of_audit(audit),
        advice=advice(audit),
        tiles=tiles(audit.count, len(audit.reports)),
        kinds=Leak,
        parts=[part for part in PAGE_PARTS if part.shown(audit)],
        share_parts=SHARE_PARTS,
        attacks=every_attack(),
        rows=[share_row(r, places.get(id(r), ""), names) for r in audit.reports],
        rows_at_once=ROWS_AT_ONCE,
        sections=sections,
        data=_data(sections),
        script=script,
        script_hash=_hash(script),
        charts=[] if audit.what_if is None else [chart(r) for r in audit.what_if.responses],
        untried=untried_words(audit),
        frame=FRAME,
    )


def _in_full(reports: Sequence[AuditReport]) -> Sequence[AuditReport]:
    """Return the shares to show with everything, in their order: the most severe of many."""
    if len(reports) <= SHARES_IN_FULL:
        return reports
    ranks = [-severity_of_share(report).rank for report in reports]
    chosen = sorted(range(len(reports)), key=ranks.__getitem__)[:SHARES_IN_FULL]
    return [reports[index] for index in sorted(chosen)]


def untried_words(audit: Audit) -> str:
    """Return a sentence on defences where none was tried."""
    if any(report.telling for report in audit.reports):
        return "No defence was tried on these updates. Run the audit again with --what-if."
    if audit.count(Leak.COMPOSITION):
        return (
            "No label, feature or input was recovered; defences against class composition are not "
            "tried."
        )
    return "No attack succeeded, so there was nothing to try defences against."


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
    environment.filters["day"] = day
    environment.filters["options"] = options_unbroken
    return environment


def options_unbroken(words: str) -> Markup:
    """Return a sentence, escaped, in which the options of a command do not break."""
    return Markup(OPTION.sub(r'<code class="option">\1</code>', str(escape(words))))


def day(date: str) -> str:
    """Return a date as people write it: ``17 November 2026``."""
    when = datetime.fromisoformat(date)
    return f"{when.day} {when:%B %Y}"


def asset(name: str) -> str:
    """Return the text of a file that comes with the page."""
    return resources.files(HERE).joinpath("assets", name).read_text("utf-8")


def _hash(script: str) -> str:
    """Return what the page's policy allows to run: the hash of this script and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
