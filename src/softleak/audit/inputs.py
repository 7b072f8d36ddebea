"""The input behind a share: computed exactly where the model is a chain, else searched for.

The one place where the method is chosen: invert, or else match gradients for a while.
"""

from __future__ import annotations

import time
from dataclasses import replace

from softleak.audit.findings import InputFinding, Method
from softleak.audit.pixels import PixelMap
from softleak.audit.subject import Subject
from softleak.data import Normalisation
from softleak.errors import ModelError, ShareError
from softleak.inversion.walk import Inversion, invert
from softleak.matching import pass_on_interrupt, reconstruct
from softleak.results import Recovery
from softleak.share import GradientShare


def recover_input(
    subject: Subject,
    share: GradientShare,
    recovery: Recovery,
    normalisation: Normalisation | None,
    seconds: float = 0.0,
) -> InputFinding:
    """The input by the strongest method that applies; at most so many ``seconds`` of matching."""
    if recovery.feature is None:
        return InputFinding(Method.NONE, "no feature was recovered to start from")
    start = time.perf_counter()
    if subject.chain is None:
        found = InputFinding(Method.NONE, subject.no_chain)
    else:
        try:
            inverted = invert(subject.model, share, recovery, chain=subject.chain)
            found = _described(inverted, normalisation)
        except ShareError as error:
            found = InputFinding(Method.NONE, str(error))
    if found.method is Method.NONE and seconds > 0 and subject.input_shape is not None:
        found = _matched(subject, share, recovery, normalisation, seconds, found.message)
    return replace(found, seconds=time.perf_counter() - start)


def _matched(
    subject: Subject,
    share: GradientShare,
    recovery: Recovery,
    normalisation: Normalisation | None,
    seconds: float,
    why: str,
) -> InputFinding:
    """An input whose gradient is near the share's: a candidate, and no more."""
    try:
        found = reconstruct(
            subject.model, share, recovery, seconds=seconds, head=subject.head,
            input_shape=subject.input_shape,
        )  # fmt: skip
    except ModelError as error:
        return InputFinding(Method.NONE, f"{why.partition(';')[0]}; and {error}")
    pass_on_interrupt([found])
    if found.input is None:
        return InputFinding(Method.NONE, f"{why}; and {found.status.value}")
    pixels = PixelMap.of(found.input, normalisation)
    message = (
        f"{why.partition(';')[0]}, so gradients were matched: that of this image differs from the "
        f"share's by {found.misfit:.0%}, which does not tell how near the image is"
    )
    return InputFinding(
        Method.MATCHING, message, pixels(found.input), to_pixels=pixels, misfit=found.misfit
    )


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
