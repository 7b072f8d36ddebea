"""One share as the page shows it: words, bars, pictures, and the data of the scalar view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softleak.audit.findings import LabelLeak
from softleak.audit.reports import AuditReport
from softleak.audit.verdict import headline
from softleak.audit.words import (
    class_name,
    composition_words,
    describe,
    feature_words,
    in_brief,
    input_words,
    label_words,
)
from softleak.report.machine import numbers
from softleak.report.png import data_uri, is_picture

BARS = 12  # of many classes the largest


@dataclass(frozen=True)
class Bar:
    """One class of a label, from 0 to 1; ``low`` and ``high`` bound what fits."""

    name: str
    value: float
    low: float
    high: float
    true: float | None


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
    short: str
    bars: tuple[Bar, ...]
    hidden: int  # classes without a bar
    picture: str | None
    true_picture: str | None
    difference: str | None
    gain: int
    scalar: dict[str, Any] | None


def section(report: AuditReport, number: int, names: Sequence[str]) -> Section:
    """Prepare one share for the page."""
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
        in_brief(report, names, describe),
        bars,
        hidden,
        _picture(found),
        _picture(true),
        _picture(off),
        gain,
        _scalar(report, names),
    )


def _bars(report: AuditReport, names: Sequence[str]) -> tuple[tuple[Bar, ...], int]:
    """The label by class, in the order of the classes if they are few, else the largest."""
    recovery = report.label.recovery
    if recovery.label is None:
        return (), 0
    fitting = [c.labels for c in recovery.solutions]
    if recovery.interval is not None:
        fitting.append(recovery.interval)
    every = torch.cat([*fitting, recovery.label[None]]).clamp(0, 1)
    low, high = every.amin(0), every.amax(0)
    true = None if report.score is None else report.score.label_true
    order = range(len(high)) if len(high) <= BARS else high.topk(BARS).indices.tolist()
    bars = tuple(
        Bar(
            class_name(i, names), float(recovery.label[i]), float(low[i]), float(high[i]),
            None if true is None else float(true[i]),
        )
        for i in order
    )  # fmt: skip
    return bars, len(high) - len(bars)


def _picture(pixels: Tensor | None) -> str | None:
    return data_uri(pixels) if pixels is not None and is_picture(pixels) else None


def _difference(found: Tensor | None, true: Tensor | None) -> tuple[Tensor | None, int]:
    """How far the pixels are from the true ones, and the power of ten that makes it visible."""
    if found is None or true is None or found.shape != true.shape:
        return None, 0
    off = (found.clamp(0, 1) - true.clamp(0, 1)).abs()
    gain = 0
    while gain < 9 and float(off.mean()) * 10 ** (gain + 1) < 0.5:
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
        "marks": [{"t": m.scalar, "low": m.low, "high": m.high} for m in view.marks],
        "unique": report.label.leak is LabelLeak.UNIQUE,
        "names": [class_name(i, names) for i in range(len(view.u))],
    }
