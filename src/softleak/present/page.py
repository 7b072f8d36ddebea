"""Write the page: one file that needs no network and runs nothing of the inputs."""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from torch import Tensor

from softleak._version import __version__
from softleak.audit.findings import LabelLeak, SamplesFinding
from softleak.audit.leaks import Leak, Severity
from softleak.audit.report import Audit, AuditReport
from softleak.core.results import Status
from softleak.core.vocabulary import State, written
from softleak.io.atomic import write_text
from softleak.present.advice import advice, severity_of_audit, severity_of_share
from softleak.present.catalogue import every_attack
from softleak.present.charts import FRAME, LogCurve, chart, curves
from softleak.present.json import finite, numbers
from softleak.present.words import (
    class_name,
    composition_words,
    feature_words,
    headline,
    in_a_line,
    in_brief,
    input_words,
    known_words,
    label_words,
    sample_words,
    summary,
)

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPE = {1: 0, 3: 2}  # PNG's colour type by number of channels


def is_picture(pixels: Tensor) -> bool:
    """Return whether a tensor can be shown: (1 or 3, H, W)."""
    return pixels.ndim == 3 and pixels.shape[0] in COLOUR_TYPE


def picture(pixels: Tensor | None) -> str | None:
    """Return pixels as a data URI, or None if there are none that can be shown."""
    return data_uri(pixels) if pixels is not None and is_picture(pixels) else None


def data_uri(pixels: Tensor) -> str:
    """Return pixels (C, H, W) in [0, 1], clamped, as a PNG of eight bits per channel."""
    channels, height, width = pixels.shape
    bytes_ = pixels.nan_to_num(0.0).clamp(0, 1).mul(255).round().byte().permute(1, 2, 0)
    rows = bytes_.contiguous().cpu().numpy().reshape(height, width * channels)
    filtered = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPE[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered, 9)), (b"IEND", b""))
    png = PNG_SIGNATURE + b"".join(_chunk(kind, content) for kind, content in chunks)
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


@dataclass(frozen=True)
class Tile:
    """Of how many updates something leaked, and of how many it was not attacked."""

    count: int
    total: int
    what: str
    note: str
    untried: int


def tiles(count: Callable[[Leak, State], int], total: int) -> list[Tile]:
    """Return a tile for each kind of leak.

    Args:
        count: tells of how many updates a kind of leak is in a state.
        total: the number of updates.
    """
    return [
        Tile(
            count(leak, State.LEAKED),
            total,
            leak.short,
            leak.counts_if,
            count(leak, State.NOT_ATTACKED),
        )
        for leak in Leak
    ]


CARD_BARS = 3  # the largest entries of a label that a card shows


@dataclass(frozen=True)
class SampleCard:
    """One sample of an update of several.

    Attributes:
        status: UNIQUE or AMBIGUOUS.
        words: the label and its certificate.
        bars: the largest entries of the label, each with the name of its class.
        picture: the input, if a layer gave it or a search ended at it.
        caption: what the picture is worth, since the status speaks of the label alone.
    """

    status: str
    words: str
    bars: tuple[tuple[str, float], ...]
    picture: str | None
    caption: str


def sample_cards(found: SamplesFinding, names: Sequence[str]) -> tuple[SampleCard, ...]:
    """Return a card for each sample that was found, those that are proved first."""
    pictures = [*map(picture, found.pictures), *[None] * len(found.samples)]
    caption = _caption(found)
    cards = []
    for one, image in zip(found.samples, pictures, strict=False):
        bars: tuple[tuple[str, float], ...] = ()
        if one.label is not None:
            top = one.label.topk(min(CARD_BARS, len(one.label)))
            entries = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            bars = tuple((class_name(i, names), min(max(value, 0.0), 1.0)) for i, value in entries)
        words = sample_words(one, names)
        cards.append(SampleCard(one.status.name, words, bars, image, caption))
    return tuple(sorted(cards, key=lambda card: card.status != Status.UNIQUE.name))


def _caption(found: SamplesFinding) -> str:
    """Return what the pictures of the samples are worth, which is the same of all."""
    if found.proved_inputs:
        return "the input, proved"
    if found.searched is None:
        return "the input, not proved"
    return "the input, a candidate" if found.inputs else "no success: the search ended here"


NOT_RANKED = -1e9  # sorts what did not leak behind everything that did


@dataclass(frozen=True, eq=False)
class ShareRow:
    """One share in the table.

    Attributes:
        id: where the share is shown in full, or nothing.
        report: what was found.
        severity: how bad it is.
        short: the label in a few words.
        feature: the relative error of the feature.
        input: how good the input is.
        composition: how many classes are proved.
        leaks: the words that the filter knows, with spaces between them.
    """

    id: str
    report: AuditReport
    severity: Severity
    short: str
    feature: str
    input: str
    composition: str
    leaks: str

    @property
    def feature_value(self) -> float:
        """Return what features are sorted by: the better known, the larger."""
        return -self.report.feature.error if self.report.feature.proved else NOT_RANKED

    @property
    def input_value(self) -> float:
        """Return what inputs are sorted by: the quality in dB."""
        quality = self.report.input.quality
        return round(quality, 2) if self.report.shows_input and quality > NOT_RANKED else NOT_RANKED


def share_row(report: AuditReport, identity: str, names: Sequence[str]) -> ShareRow:
    """Prepare the row of one share.

    Args:
        report: what the audit found.
        identity: the id of its section, or nothing if it has none.
        names: the names of the classes, or nothing.
    """
    found = report.input
    exact = found.psnr_predicted is not None and found.leaked
    shown = f"{found.psnr_predicted:.0f} dB" if exact else "recognisable"
    return ShareRow(
        identity,
        report,
        severity_of_share(report),
        in_brief(report, names, in_a_line),
        f"±{written(report.feature.error)}",
        known_words(found.text) if found.text else shown,
        f"{len(report.composition.present) or 1} proved",
        " ".join(_row_words(report)),
    )


def _row_words(report: AuditReport) -> list[str]:
    """Return what the filter can ask for."""
    said = [leak.value for leak in Leak if leak in report.leaks]
    untried = State.NOT_ATTACKED in report.states.values()
    return [*(said or ["quiet"]), *(["untried"] if untried else [])]


MOST_BARS = 12  # of more classes only the largest entries are shown
MOST_GAIN = 9  # powers of ten by which a difference is made visible


@dataclass(frozen=True)
class Bar:
    """One class of a label, from 0 to 1; ``low`` and ``high`` bound what fits."""

    name: str
    value: float
    low: float
    high: float
    true: float | None


@dataclass(frozen=True)
class Word:
    """One place of a text: the word found there, the true one if known, the certainty."""

    text: str
    spaced: bool
    certainty: str
    why: str
    true: str | None


@dataclass(frozen=True, eq=False)
class Section:
    """What the template needs of one share."""

    id: str
    report: AuditReport
    headline: str
    label: str
    feature: str
    input: str
    composition: str
    bars: tuple[Bar, ...]
    hidden: int  # classes without a bar
    picture: str | None
    true_picture: str | None
    difference: str | None
    gain: int
    scalar: dict[str, Any] | None
    words: tuple[Word, ...] = ()
    cards: tuple[SampleCard, ...] = ()
    curves: tuple[LogCurve, ...] = ()  # of Gauss–Newton

    @property
    def severity(self) -> Severity:
        """Return how bad it is."""
        return severity_of_share(self.report)


def section(report: AuditReport, number: int, names: Sequence[str]) -> Section:
    """Prepare one share for the page.

    Args:
        report: what the audit found.
        number: its place on the page, from 1.
        names: the names of the classes, or nothing.
    """
    bars, hidden = _bars(report, names)
    found, score = report.input.pixels, report.score
    true = None if score is None else score.pixels_true
    off, gain = _difference(found, true)
    return Section(
        f"share-{number}",
        report,
        headline(report),
        label_words(report, names),
        feature_words(report),
        input_words(report),
        composition_words(report, names),
        bars,
        hidden,
        picture(found),
        picture(true),
        picture(off),
        gain,
        _scalar(report, names),
        _words(report),
        sample_cards(report.samples, names),
        curves(report.input.certificate),
    )


def _bars(report: AuditReport, names: Sequence[str]) -> tuple[tuple[Bar, ...], int]:
    """Return a bar per class: in the order of the classes if they are few, else the largest."""
    recovery = report.label.recovery
    if recovery.label is None:
        return (), 0
    fitting = [c.labels for c in recovery.solutions]
    if recovery.interval is not None:
        fitting.append(recovery.interval)
    every = torch.cat([*fitting, recovery.label[None]]).clamp(0, 1)
    low, high = every.amin(0), every.amax(0)
    true = None if report.score is None else report.score.label_true
    order = range(len(high)) if len(high) <= MOST_BARS else high.topk(MOST_BARS).indices.tolist()
    bars = tuple(
        Bar(
            class_name(i, names), float(recovery.label[i]), float(low[i]), float(high[i]),
            None if true is None else float(true[i]),
        )
        for i in order
    )  # fmt: skip
    return bars, len(high) - len(bars)


def _words(report: AuditReport) -> tuple[Word, ...]:
    """Return the words of a text, each with its certainty and beside the truth if it is known."""
    text, names = report.input.text, report.tokens
    if text is None:
        return ()
    true = () if report.score is None else report.score.tokens_true
    made = []
    for place in text.places:
        word, spaced = names.word(place.token)
        truth = true[place.position] if place.position < len(true) else place.token
        wrong = None if truth == place.token else names.word(truth)[0]
        certainty = place.certainty.name.lower()
        made.append(Word(word, spaced, certainty, place.certainty.value, wrong))
    return tuple(made)


def _difference(found: Tensor | None, true: Tensor | None) -> tuple[Tensor | None, int]:
    """Return how far pixels are from the true ones, times a power of ten that makes it visible."""
    if found is None or true is None or found.shape != true.shape:
        return None, 0
    off = (found.clamp(0, 1) - true.clamp(0, 1)).abs()
    gain = 0
    while gain < MOST_GAIN and float(off.mean()) * 10 ** (gain + 1) < 0.5:
        gain += 1
    return off * 10**gain, gain


def _short_number(value: float) -> float:
    return float(f"{value:.4g}")


def _scalar(report: AuditReport, names: Sequence[str]) -> dict[str, Any] | None:
    view = report.view
    if view is None:
        return None
    return {
        "a": numbers(view.a),
        "b": numbers(view.b),
        "u": numbers(view.u),
        "reach": view.reach,
        "loss": [_short_number(loss) for loss in view.loss.tolist()],
        "near": [[t, _short_number(loss)] for t, loss in view.near.tolist()],
        "marks": [
            {"t": m.scalar, "low": m.low, "high": m.high} for m in report.label.recovery.solutions
        ],
        "unique": report.label.leak is LabelLeak.UNIQUE,
        "names": [class_name(i, names) for i in range(len(view.u))],
    }


HERE = "softleak.present"
OPTION = re.compile(r"(--[a-z][a-z-]*)")
ROWS_AT_ONCE = 100  # rows of the table that are there before anybody asks for more
SHARES_IN_FULL = 48  # shares shown with everything, the most severe; the others have a row each


@dataclass(frozen=True)
class PagePart:
    """One section of the page.

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
