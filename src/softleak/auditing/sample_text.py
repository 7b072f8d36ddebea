"""This module puts into words what was found of the samples of an update of several."""

from __future__ import annotations

from collections.abc import Sequence

from softleak.auditing.rates import Leak
from softleak.auditing.sample_findings import SamplesFinding
from softleak.auditing.wording import FAILED, describe, listed, written
from softleak.results import Recovery, Status


def leaked_of_samples(found: SamplesFinding, leaks: Sequence[Leak]) -> list[str]:
    """Return what leaked of the samples of an update, for a headline.

    What leaked of the same number of samples is said together.

    Args:
        found: what was found of the samples.
        leaks: what leaked of some of them.
    """
    known = {
        Leak.LABEL: (len(found.proved), "the exact {}", "label"),
        Leak.FEATURE: (found.features, "the {} before the last layer", "feature"),
        Leak.INPUT: (found.inputs, "the {}", "input"),
    }
    said: dict[int, list[str]] = {}
    for leak in leaks:
        count, phrase, noun = known[leak]
        said.setdefault(count, []).append(phrase.format(noun if count == 1 else f"{noun}s"))
    return [f"{listed(words)} of {_part(count, found.size)}" for count, words in said.items()]


def _part(count: int, size: int) -> str:
    if count != size:
        return f"{count} of {size} samples"
    return "both samples" if size == 2 else f"all {size} samples"


def samples_words(found: SamplesFinding) -> str:
    """Return what is known of the labels of an update of several samples."""
    if found.found is None:
        return found.message
    if not found.proved:
        return f"no label of a single sample is proved: {found.message}; {FAILED}"
    return f"proved of {_part(len(found.proved), found.size)}, without the truth: {found.message}"


def features_words(found: SamplesFinding) -> str:
    """Return what is known of the features of an update of several samples."""
    if found.found is None:
        return "not attacked: the update mixes several samples or steps"
    if not found.features:
        return f"not proved; {FAILED}"
    errors = [one.feature_error for one in found.proved]
    part = _part(found.features, found.size)
    return f"proved of {part}, to a relative error of {written(max(errors))} or less"


def inputs_words(found: SamplesFinding) -> str:
    """Return what is known of the inputs, if they are given away."""
    part = f"the inputs of {_part(found.inputs, found.size)}"
    if found.searched is None:
        return f"{part}, computed from the update and proved"
    predicted = found.searched.psnr_predicted
    quality = "" if predicted is None else f"predicted {predicted:.0f} dB, "
    return f"{part}, {quality}by {found.searched.method.value}: {found.searched.message}"


def sample_words(one: Recovery, names: Sequence[str]) -> str:
    """Return what is known of one sample: its label and its certificate."""
    label = "no label" if one.label is None else describe(one.label, names)
    if one.status is Status.UNIQUE:
        return f"{label}; off by at most {written(one.error)} in L1, proved without the truth"
    return f"perhaps {label}; {one.message}"
