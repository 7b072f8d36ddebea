"""This module prepares one share for the page: words, bars, pictures and the scalar view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softleak.auditing.findings import LabelLeak
from softleak.auditing.headline import headline
from softleak.auditing.reports import AuditReport
from softleak.auditing.severity import Severity, severity_of_share
from softleak.auditing.verdict_text import (
    composition_words,
    feature_words,
    input_words,
    label_words,
)
from softleak.auditing.wording import class_name
from softleak.report.convergence import LogCurve, curves
from softleak.report.machine import numbers
from softleak.report.png import picture
from softleak.report.sample_cards import SampleCard, sample_cards

MOST_BARS = 12  # of more classes only the largest entries are shown
MOST_GAIN = 9  # powers of ten by which a difference is made visible


@dataclass(frozen=True)
class Bar:
    """This is one class of a label, from 0 to 1; ``low`` and ``high`` bound what fits."""

    name: str
    value: float
    low: float
    high: float
    true: float | None


@dataclass(frozen=True)
class Word:
    """This is one place of a text: the word found there, the true one if known, the certainty."""

    text: str
    spaced: bool
    certainty: str
    why: str
    true: str | None


@dataclass(frozen=True, eq=False)
class Section:
    """This holds what the template needs of one share."""

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
        "marks": [{"t": m.scalar, "low": m.low, "high": m.high} for m in view.marks],
        "unique": report.label.leak is LabelLeak.UNIQUE,
        "names": [class_name(i, names) for i in range(len(view.u))],
    }
