"""Inputs behind several local steps as an audit attacks them: where the first layer gives them."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from torch import Tensor

from softleak.auditing.audit_options import Options
from softleak.auditing.findings import InputFinding, Method
from softleak.auditing.pixels import PixelMap
from softleak.batches.trained_batch import recover_trained_batch
from softleak.errors import in_a_line
from softleak.share import GradientShare
from softleak.subject import Subject

FIRST_LAYER = Method("FIRST_LAYER", "closed form, from the first layer's update", exact=True)


def trained_input(subject: Subject, share: GradientShare, options: Options) -> InputFinding:
    """Return the inputs behind an update of several steps, or why they were not attacked.

    Of several inputs the finding holds the first, and says how many there are.
    """
    if not options.inputs:
        return InputFinding(Method.NONE, "inputs were not asked for", asked=False)
    start = time.perf_counter()
    try:
        found = recover_trained_batch(subject, share, options.knowledge.of(share))
    except Exception as error:  # the model's own code and torch may raise anything
        return InputFinding(Method.NONE, f"could not be carried out: {in_a_line(error)}")
    if found.inputs is None:
        method = Method.NONE if found.size <= 1 else FIRST_LAYER
        return InputFinding(method, found.message, seconds=time.perf_counter() - start)
    shown = _described(found.inputs, found.input_error, found.message, options)
    return replace(shown, seconds=time.perf_counter() - start)


def _described(inputs: Tensor, error: float, message: str, options: Options) -> InputFinding:
    first = inputs[0]
    pixels = PixelMap.of(first, options.normalisation)
    off = error * float(pixels.scale.max())
    predicted = math.inf if off == 0 else -20 * math.log10(off)
    return InputFinding(
        FIRST_LAYER, message, pixels(first), predicted, determined=True, to_pixels=pixels
    )  # fmt: skip
