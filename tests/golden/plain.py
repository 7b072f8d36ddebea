"""Answers as plain data that JSON can hold, without sentences and times."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

import softleak as sl


def number(value: float | None) -> float | None:
    """Return a number to 7 digits; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{float(value):.7g}")


def numbers(tensor: Tensor | None) -> list | None:
    """Return the entries of a tensor, in one list, to 7 places and 7 digits."""
    if tensor is None:
        return None
    return [round(float(f"{v:.7g}"), 7) for v in tensor.detach().double().flatten().tolist()]


def listed(found: Iterable[dict]) -> list[dict]:
    """Return a list of answers without the entries that say nothing."""
    return [{k: v for k, v in one.items() if v not in (None, [], 0, False)} for one in found]


def recovery_data(found: sl.Recovery) -> dict:
    """Return everything of a recovery but its message."""
    feature = found.feature
    return {
        "status": found.status.name,
        "label": numbers(found.label),
        "family": None if found.family is None else repr(found.family),
        "scalar": number(found.scalar),
        "error": number(found.error),
        "feature_norm": None if feature is None else number(float(feature.double().norm())),
        "feature_error": number(found.feature_error),
        "scale": number(found.scale),
        "samples": found.samples,
        "difference": numbers(found.difference),
        "candidates": len(found.candidates),
        "solutions": len(found.solutions),
        "complete": found.complete,
        "class_index": found.class_index,
        "proved_class": found.proved_class,
        "readings": [repr(reading.family) for reading in found.readings],
        "evidence": [f"{e.parameter}:{e.holds:d}{e.agrees:d}{e.single:d}" for e in found.evidence],
        "noise": number(found.noise),
        "confidence": number(found.confidence),
        "interval": numbers(found.interval),
    }


def batch_data(found: sl.BatchRecovery) -> dict:
    """Return everything of a batch but its messages; samples are sorted by their labels."""
    samples = [recovery_data(one) for one in found.samples]
    kept = ("status", "label", "family", "error", "feature_norm", "feature_error", "scale")
    short = [{key: one[key] for key in kept} for one in samples]
    short.sort(key=lambda one: [round(v, 3) for v in one["label"] or ()])
    return {
        "status": found.status.name,
        "size": found.size,
        "samples": short,
        "inputs": None if found.inputs is None else list(found.inputs.shape),
        "input_sums": None
        if found.inputs is None
        else sorted(numbers(found.inputs.flatten(1).double().sum(1))),
        "input_error": number(found.input_error),
    }


def magnitude(error: Tensor | None) -> float | None:
    """Return the root mean square of predicted errors."""
    return None if error is None else number(float(error.double().square().mean().sqrt()))


def seeded(seed: int = 0) -> None:
    """Seed what a model or an attack may draw without a generator of its own."""
    torch.default_generator.manual_seed(seed)
