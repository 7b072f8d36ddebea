"""The inputs of an update of several samples, which are searched for together."""

from __future__ import annotations

import time
from dataclasses import replace

from softleak.auditing.attack_outcome import Attempt, Outcome
from softleak.auditing.audit_options import Options
from softleak.auditing.findings import InputFinding, Method
from softleak.auditing.sample_findings import SamplesFinding
from softleak.auditing.solved import search_input
from softleak.errors import in_a_line
from softleak.share import GradientShare
from softleak.subject import Subject

NOT_SEARCHED = InputFinding(Method.NONE, "the update mixes several samples or steps")


def batch_input(
    subject: Subject, share: GradientShare, samples: SamplesFinding, options: Options
) -> InputFinding:
    """Search for all inputs of an update of several samples, if one of its labels is proved.

    Each sample has its own label and feature as targets. The finding holds the first input, and
    all of them as its ``batch``.

    Args:
        subject: the model made ready.
        share: the gradient of one step on all samples.
        samples: what was found of the samples.
        options: how long to search, and how pixels became inputs.
    """
    if samples.found is None or not samples.proved or samples.pictures:
        return NOT_SEARCHED
    start = time.perf_counter()
    try:
        found = search_input(subject, share, samples.found, options)
    except Exception as error:  # the model's own code and torch may raise anything
        return InputFinding(Method.NONE, f"matching could not be carried out: {in_a_line(error)}")
    if found is None:
        return InputFinding(Method.NONE, "no time was given to search for the inputs of the batch")
    attempts = found.attempts
    if found.method != Method.NONE:
        attempts += (Attempt("matching", Outcome.of(found.leaked), found.message),)
    return replace(found, seconds=time.perf_counter() - start, attempts=attempts)
