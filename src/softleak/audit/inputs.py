"""The input behind a share: computed exactly where the model is a chain.

The one place where the method is chosen: invert, or else whatever else can be done.
"""

from __future__ import annotations

import time
from dataclasses import replace

from softleak.audit.findings import InputFinding, Method
from softleak.audit.pixels import PixelMap
from softleak.audit.subject import Subject
from softleak.data import Normalisation
from softleak.errors import ShareError
from softleak.inversion.walk import Inversion, invert
from softleak.results import Recovery
from softleak.share import GradientShare


def recover_input(
    subject: Subject,
    share: GradientShare,
    recovery: Recovery,
    normalisation: Normalisation | None,
) -> InputFinding:
    """The input by the strongest method that applies, and in how long."""
    if recovery.feature is None:
        return InputFinding(Method.NONE, "no feature was recovered to start from")
    if subject.chain is None:
        return InputFinding(Method.NONE, subject.no_chain)
    start = time.perf_counter()
    if recovery.noise and not share.rounding:
        share = share.expecting(recovery.noise)
    try:
        found = invert(subject.model, share, recovery, chain=subject.chain)
    except ShareError as error:
        return InputFinding(Method.NONE, str(error))
    return replace(_described(found, normalisation), seconds=time.perf_counter() - start)


def _described(found: Inversion, normalisation: Normalisation | None) -> InputFinding:
    if not found.input.isfinite().all():
        return InputFinding(Method.NONE, "the equations have no finite solution")
    pixels = PixelMap.of(found.input, normalisation)
    message = (
        "every layer's equations determined its input, and agree"
        if found.determined
        else "some layer's equations do not determine its input, or contradict each other"
    )
    return InputFinding(
        Method.INVERSION,
        message,
        pixels(found.input),
        replace(found, pixel=pixels.scale).psnr_predicted,
        found.determined,
        found.layers,
        pixels,
    )
