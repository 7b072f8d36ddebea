"""Gradient matching as an audit runs it: two independent starts, within a time."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from softleak.audit.findings import InputFinding, Method
from softleak.audit.pixels import PixelMap
from softleak.audit.subject import Subject
from softleak.data import Normalisation
from softleak.matching import Adam, Noise, Reconstruction, pass_on_interrupt, reconstruct
from softleak.results import Recovery
from softleak.share import GradientShare

STARTS = (Noise(0), Noise(1))
USUAL = 0.25  # the standard deviation of a photograph's pixels, of range one
ALIKE = 120.0  # dB: more is equality
TINY = 1e-12
TRIALS = (2, 8)  # steps that tell how long one takes
PART = 0.9  # of the time is planned for
FEWEST = 50  # steps, however long they take: the time ends them


def match_input(
    subject: Subject,
    share: GradientShare,
    recovery: Recovery,
    normalisation: Normalisation | None,
    seconds: float,
) -> InputFinding:
    """An input whose gradient is near the share's, and how well two starts agree on it."""
    found = _from_two_starts(subject, share, recovery, seconds)
    pass_on_interrupt(found)
    best = min(found, key=lambda one: one.misfit)
    if best.input is None:
        return InputFinding(Method.NONE, f"matching could not be carried out: {best.status.value}")
    to_pixels = PixelMap.of(best.input, normalisation)
    pixels = [to_pixels(one.input) for one in found if one.input is not None]
    agreement = agreement_of(*pixels) if len(pixels) > 1 else None
    said = "" if agreement is None else f", and two starts agree to {agreement:.0f} dB"
    message = (
        f"gradients were matched: that of this image differs from the share's by {best.misfit:.0%}"
        f"{said}"
    )
    return InputFinding(
        Method.MATCHING, message, to_pixels(best.input), to_pixels=to_pixels, misfit=best.misfit,
        agreement=agreement,
    )  # fmt: skip


def agreement_of(one: Tensor, other: Tensor) -> float:
    """The PSNR in dB between two images, were their contrast that of a usual photograph.

    Relative to the contrast of the images themselves: two flat ones do not agree by being flat,
    and one bright pixel does not make the rest agree.
    """
    contrast = float(torch.minimum(one.std(), other.std()))
    off = float((one - other).square().mean().sqrt())
    if off == 0.0:
        return ALIKE
    return min(-20 * math.log10(USUAL * off / max(contrast, TINY)), ALIKE)


def _from_two_starts(
    subject: Subject, share: GradientShare, recovery: Recovery, seconds: float
) -> tuple[Reconstruction, ...]:
    """Both at once, with as many steps as the time allows, so that the step size can fall."""

    def run(steps: int, left: float) -> tuple[Reconstruction, ...]:
        return reconstruct(
            subject.model, [share] * len(STARTS), [recovery] * len(STARTS), start=STARTS,
            optimiser=Adam(steps=steps), seconds=left, head=subject.head,
            input_shape=subject.input_shape,
        )  # fmt: skip

    begin = last = time.perf_counter()
    for steps in TRIALS:  # the first of which also warms up
        last = time.perf_counter()
        pass_on_interrupt(run(steps, seconds))
    now = time.perf_counter()
    left = max(seconds - (now - begin), 0.0)
    possible = int(PART * left / (now - last) * TRIALS[-1])
    return run(min(Adam().steps, max(FEWEST, possible)), left)
