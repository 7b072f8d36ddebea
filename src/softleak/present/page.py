"""Write the page: one file that needs no network and runs nothing of the inputs."""

from __future__ import annotations

import base64
import hashlib
import math
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
from softleak.audit.leaks import Leak
from softleak.audit.report import Audit, AuditReport, SamplesFinding
from softleak.audit.sweeps import Rate, Response
from softleak.core.results import Status
from softleak.core.vocabulary import State, written
from softleak.io.atomic import write_text
from softleak.matching.reconstruction import Certificate
from softleak.present.advice import advice, severity_of_audit, severity_of_share
from softleak.present.bounds import hiding_rests_on, hiding_words, zones
from softleak.present.catalogue import every_attack
from softleak.present.fit import fit_rows, fit_words
from softleak.present.machine import finite
from softleak.present.words import (
    VOID,
    class_name,
    classes_in_brief,
    composition_words,
    feature_words,
    headline,
    in_a_line,
    in_brief,
    input_in_brief,
    input_words,
    label_words,
    reread,
    sample_words,
    summary,
    utility_words,
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
    png = PNG_SIGNATURE + b"".join(
        struct.pack(">I", len(content)) + kind + content
        + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )  # fmt: skip
    return "data:image/png;base64," + base64.b64encode(png).decode()


def tiles(count: Callable[[Leak, State], int], total: int) -> list[dict[str, Any]]:
    """Return for each kind of leak in how many updates it leaked, and in how many nobody looked."""
    return [
        {
            "count": count(leak, State.LEAKED),
            "total": total,
            "what": leak.short,
            "note": leak.counts_if,
            "untried": sum(count(leak, state) for state in State if not state.attacked),
            "contradicted": count(leak, State.CONTRADICTED),
        }
        for leak in Leak
    ]


CARD_BARS = 3  # the largest entries of a label that a card shows


def sample_cards(found: SamplesFinding, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a card for each sample of an update that was found, those that are proved first."""
    pictures = [*map(picture, found.pictures), *[None] * len(found.samples)]
    if found.proved_inputs:
        caption = "the input, proved"
    elif found.searched is None:
        caption = "the input, not proved"
    else:
        caption = "the input, a candidate" if found.inputs else "no success: the search ended here"
    cards = [
        {
            "status": one.status.name,
            "words": sample_words(one, names),
            "bars": [] if one.label is None else _leading(one.label, names),
            "picture": image,
            "caption": caption,
        }
        for one, image in zip(found.samples, pictures, strict=False)
    ]
    return sorted(cards, key=lambda card: card["status"] != Status.UNIQUE.name)


def _leading(label: Tensor, names: Sequence[str]) -> list[tuple[str, float]]:
    """Return the largest entries of a label, each with the name of its class."""
    top = label.topk(min(CARD_BARS, len(label)))
    entries = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return [(class_name(i, names), min(max(value, 0.0), 1.0)) for i, value in entries]


NOT_RANKED = -1e9  # sorts what did not leak behind everything that did


def share_row(report: AuditReport, identity: str, names: Sequence[str]) -> dict[str, Any]:
    """Prepare the row of one share in the table of all."""
    found, feature = report.input, report.feature
    ranked = report.shows_input and found.quality > NOT_RANKED
    leaks = [leak.value for leak in Leak if leak in report.leaks] or ["quiet"]
    return {
        "id": identity,  # of its section, or nothing if it has none
        "report": report,
        "severity": severity_of_share(report),
        "short": in_brief(report, names, in_a_line),
        "feature": f"±{written(feature.error)}",
        "feature_value": -feature.error if feature.proved else NOT_RANKED,  # for sorting
        "input": input_in_brief(report),
        "input_value": round(found.quality, 2) if ranked else NOT_RANKED,
        "composition": classes_in_brief(report),
        "leaks": " ".join([*leaks, *(["untried"] if report.unattacked else [])]),  # to filter by
    }


MOST_BARS = 12  # of more classes only the largest entries are shown
MOST_GAIN = 9  # powers of ten by which a difference is made visible


def section(report: AuditReport, number: int, names: Sequence[str]) -> dict[str, Any]:
    """Prepare all that is shown of one share."""
    bars, hidden = _bars(report, names)
    found, score = report.input.pixels, report.score
    true = None if score is None else score.pixels_true
    off, gain = _difference(found, true)
    return {
        "id": f"share-{number}",
        "report": report,
        "severity": severity_of_share(report),
        "headline": headline(report),
        "void": VOID,
        "label": label_words(report, names),
        "feature": feature_words(report),
        "input": input_words(report),
        "composition": composition_words(report, names),
        "bars": bars,
        "hidden": hidden,  # classes without a bar
        "picture": picture(found),
        "true_picture": picture(true),
        "difference": picture(off),
        "gain": gain,
        "scalar": _scalar(report, names),
        "words": _words(report),
        "fit": fit_rows(report.fit),
        "fit_words": fit_words(report.fit),
        "cards": sample_cards(report.samples, names),
        "curves": curves(report.input.certificate),
    }


def _bars(report: AuditReport, names: Sequence[str]) -> tuple[list[dict[str, Any]], int]:
    """Return a bar per class: in the order of the classes if they are few, else the largest."""
    recovery = report.label.recovery
    if recovery.label is None:
        return [], 0
    fitting = [c.labels for c in recovery.solutions]
    if recovery.interval is not None:
        fitting.append(recovery.interval)
    read = reread(report)
    label = recovery.label if read is None else read
    every = label[None].clamp(0, 1)
    if read is None:
        every = torch.cat([*fitting, every]).clamp(0, 1)
    low, high = every.amin(0), every.amax(0)
    true = None if report.score is None else report.score.label_true
    order = range(len(high)) if len(high) <= MOST_BARS else high.topk(MOST_BARS).indices.tolist()
    bars = [
        {
            "name": class_name(i, names),
            "value": round(float(label[i]), 6) + 0.0,  # never a zero below zero
            "low": float(low[i]),
            "high": float(high[i]),
            "true": None if true is None else float(true[i]),
        }
        for i in order
    ]
    return bars, len(high) - len(bars)


def _words(report: AuditReport) -> list[dict[str, Any]]:
    """Return the words of a text, each with its certainty and beside the truth if it is known."""
    text, names = report.input.text, report.tokens
    if text is None:
        return []
    true = () if report.score is None else report.score.tokens_true
    made = []
    for place in text.places:
        word, spaced = names.word(place.token)
        truth = true[place.position] if place.position < len(true) else place.token
        made.append({
            "text": word,
            "spaced": spaced,
            "certainty": place.certainty.name.lower(),
            "why": place.certainty.value,
            "true": None if truth == place.token else names.word(truth)[0],
        })  # fmt: skip
    return made


def _difference(found: Tensor | None, true: Tensor | None) -> tuple[Tensor | None, int]:
    """Return how far pixels are from the true ones, times a power of ten that makes it visible."""
    if found is None or true is None or found.shape != true.shape:
        return None, 0
    off = (found.clamp(0, 1) - true.clamp(0, 1)).abs()
    gain = 0
    while gain < MOST_GAIN and float(off.mean()) * 10 ** (gain + 1) < 0.5:
        gain += 1
    return off * 10**gain, gain


def _scalar(report: AuditReport, names: Sequence[str]) -> dict[str, Any] | None:
    """Return what the interactive curve of the loss needs."""
    view = report.view
    if view is None:
        return None
    marks = report.label.recovery.solutions
    shown: dict[str, Any] = finite({
        **view,
        "loss": [float(f"{loss:.4g}") for loss in view["loss"]],
        "near": [[t, float(f"{loss:.4g}")] for t, loss in view["near"]],
        "marks": [{"t": one.scalar, "low": one.low, "high": one.high} for one in marks],
        "unique": report.label.proved == "UNIQUE",
        "names": [class_name(i, names) for i in range(len(view["u"]))],
    })  # fmt: skip
    return shown


@dataclass(frozen=True)
class ChartFrame:
    """The size of a chart and its margins, in the units of its SVG."""

    width, height = 320, 170
    left, right, top, bottom = 40, 12, 14, 34

    def x(self, index: int, count: int) -> float:
        """Return where setting ``index`` of ``count`` is, from left to right."""
        along = index / (count - 1) if count > 1 else 0.5
        return self.left + (self.width - self.left - self.right) * along

    def y(self, rate: float) -> float:
        """Return where a rate from 0 to 1 is; SVG counts downwards."""
        return self.height - self.bottom - (self.height - self.top - self.bottom) * rate


FRAME = ChartFrame()
MOST_TICKS = 4  # settings written below a chart; more would overlap


def chart(response: Response) -> dict[str, Any]:
    """Lay out one defence, weak settings on the left: a line per kind of leak, and a table's row.

    A dot has an interval from ``low`` to ``high``.
    """
    count = len(response.points)
    placed = [(FRAME.x(i, count), point) for i, point in enumerate(response.points)]
    lines = []
    for leak in charted():
        dots = [_dot(x, point.rates[leak]) for x, point in placed if leak in point.rates]
        path = " ".join(f"{dot['x']:.1f},{dot['y']:.1f}" for dot in dots)
        lines += [{"leak": leak, "dots": dots, "path": path}] if dots else []
    ticks = [(x, written(point.setting)) for x, point in placed]
    return {
        "response": response,
        "lines": lines,
        "ticks": ticks[:: max(math.ceil(count / MOST_TICKS), 1)],
        "cells": [_cell(response, leak) for leak in charted()],
        "drawn": count > 1,
    }


def _dot(x: float, rate: Rate) -> dict[str, float]:
    low, high = map(FRAME.y, rate.interval)
    return {"x": x, "y": FRAME.y(rate.value), "low": low, "high": high}


def charted() -> list[Leak]:
    """Return the leaks that defences are tried against, in the order of the table."""
    return [leak for leak in Leak if leak.defended]


def _cell(response: Response, leak: Leak) -> dict[str, Any]:
    """Return from which setting on an attack failed, in words, and whether it was ``stopped``."""
    rates = [point.rates[leak] for point in response.points if leak in point.rates]
    cell = {"leak": leak, "tried": bool(rates), "stopped": False}
    if not rates:
        return {**cell, "words": "not tried"}
    hits, trials, points = rates[-1].hits, rates[-1].trials, response.points
    stopped = leak in response.stops
    left = response.left.get(leak) if stopped else points[-1].utility
    remains = "" if left is None else f"; {utility_words(left)}"
    unclaimed = response.unclaimed if leak is Leak.LABEL else 0
    if not stopped:
        also = f", and {unclaimed} more right though not claimed" if unclaimed else ""
        return {**cell, "words": f"still succeeds, {hits} of {trials}{also}{remains}"}
    # More noise protects more, and so does a smaller norm.
    way = "up" if points[-1].setting >= points[0].setting else "down"
    start = f" from {written(response.stops[leak])} {way}" if response.unit else ""
    most = "up to " if len(points) > 1 else ""
    also = f", but {most}{unclaimed} right though not claimed" if unclaimed else ""
    words = f"did not succeed{start}, 0 of {trials}{also}{remains}"
    return {**cell, "words": words, "stopped": not unclaimed}


MOST_POINTS = 120  # points of a curve; more would not be seen


def curves(certificate: Certificate | None) -> list[dict[str, Any]]:
    """Return the curves of a certificate: the convergence, and the spectrum if there is one."""
    if certificate is None or not certificate.misfits:
        return []
    found = [_curve("misfit of the update, in units of rounding", "step", certificate.misfits)]
    if certificate.spectrum is not None:
        errors = certificate.spectrum.tolist()
        found.append(_curve("predicted error", "direction, from the best determined on", errors))
    return found


def _curve(title: str, below: str, values: Sequence[float]) -> dict[str, Any]:
    """Lay out a curve of positive numbers on a logarithmic axis; others are only counted."""
    every = max(math.ceil(len(values) / MOST_POINTS), 1)
    kept = [(i, math.log10(v)) for i, v in enumerate(values) if 0 < v < math.inf]
    drawn = {"title": title, "below": below, "unshown": len(values) - len(kept)}
    kept = [*kept[:-1:every], *kept[-1:]]
    if not kept:
        return {**drawn, "path": "", "ticks": []}
    low, high = min(y for _, y in kept), max(y for _, y in kept)
    wide = high - low or 1.0
    path = " ".join(
        f"{FRAME.x(i, len(values)):.1f},{FRAME.y((y - low) / wide):.1f}" for i, y in kept
    )
    ticks = [(FRAME.y((high - low) / wide), written(10**high)), (FRAME.y(0.0), written(10**low))]
    return {**drawn, "path": path, "ticks": ticks}


HERE = "softleak.present"
OPTION = re.compile(r"(--[a-z][a-z-]*)")
ROWS_AT_ONCE = 100  # rows of the table that are there before anybody asks for more
SHARES_IN_FULL = 48  # shares shown with everything, the most severe; the others have a row each


def write_page(path: str | PathLike[str], audit: Audit) -> None:
    """Write the page of an audit to a folder that exists, whole or not at all."""
    write_text(Path(path), render(audit))


def render(audit: Audit) -> str:
    """Return the page as text. Whatever comes from a file is escaped by the template."""
    names = audit.class_names
    ranked = sorted(audit.reports, key=lambda report: -severity_of_share(report).rank)
    full = {id(report) for report in ranked[:SHARES_IN_FULL]}
    shown = [report for report in audit.reports if id(report) in full]
    sections = [section(report, number, names) for number, report in enumerate(shown, 1)]
    places = {id(s["report"]): s["id"] for s in sections}
    script = asset("page.js")
    digest = hashlib.sha256(script.encode()).digest()  # of the only script the page may run
    return fill(
        "page.html",
        **verdict(audit),
        summary=summary(audit),
        advice=list(advice(audit)),
        attacks=every_attack(),
        rows=[share_row(r, places.get(id(r), ""), names) for r in audit.reports],
        rows_at_once=ROWS_AT_ONCE,
        sections=sections,
        data={s["id"]: s["scalar"] for s in sections if s["scalar"] is not None},
        script=script,
        script_hash=base64.b64encode(digest).decode(),
    )


def verdict(audit: Audit) -> dict[str, Any]:
    """Return what page and dossier show alike of an audit: tiles, and charts of defences."""
    return {
        "audit": audit,
        "severity": severity_of_audit(audit),
        "tiles": tiles(audit.count, len(audit.reports)),
        "kinds": Leak,
        "charts": [] if audit.what_if is None else [chart(r) for r in audit.what_if.responses],
        "untried": untried_words(audit),
        "zones": zones(audit),
        "hiding": list(hiding_words(audit)),
        "hiding_rests_on": hiding_rests_on(audit),
        "frame": FRAME,
    }


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
    """Return a template of ``package``, or of those here, with its values, which it escapes."""
    page = environment(package).get_template(template)
    return page.render(style=asset("page.css"), version=__version__, **values)


@cache
def environment(package: str = HERE) -> Environment:
    """Return the templates of a package and those here; they escape whatever they are given."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name, "assets") for name in (package, HERE)]),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["size"] = written
    environment.filters["day"] = day
    # A sentence in which the options of a command do not break.
    environment.filters["options"] = lambda words: Markup(
        OPTION.sub(r'<code class="option">\1</code>', str(escape(words)))
    )
    return environment


def day(date: str) -> str:
    """Return a date as people write it: ``17 November 2026``."""
    when = datetime.fromisoformat(date)
    return f"{when.day} {when:%B %Y}"


def asset(name: str) -> str:
    """Return the text of a file that comes with the page."""
    return resources.files(HERE).joinpath("assets", name).read_text("utf-8")
