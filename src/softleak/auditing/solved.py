"""Gauss–Newton as an audit runs it: an image of a smooth network is proved, or else matched."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

from softleak.auditing.attack_outcome import Attempt, Outcome
from softleak.auditing.audit_options import Options
from softleak.auditing.findings import InputFinding, Method
from softleak.auditing.matched import match_input
from softleak.auditing.pixels import PixelMap
from softleak.errors import in_a_line
from softleak.matching import GaussNewton, Matching, Reconstruction
from softleak.results import BatchRecovery, Recovery
from softleak.share import GradientShare
from softleak.subject import Subject

GAUSS_NEWTON = "Gauss–Newton"


@dataclass(frozen=True)
class SolveSettings:
    """These settings say how long an audit solves for an image before it matches gradients.

    Attributes:
        part: the part of the time that solving may take; matching has the rest.
        restarts: from how many further starts it is tried.
        method: how the equations are solved.
    """

    part: float = 0.6
    restarts: int = 2
    method: GaussNewton = field(default_factory=GaussNewton)


SOLVING = SolveSettings()


def search_input(
    subject: Subject, share: GradientShare, recovery: Recovery | BatchRecovery, options: Options
) -> InputFinding | None:
    """Solve for the input of a smooth network; match gradients if that proves nothing.

    The inputs of a batch are searched for together. How Gauss–Newton ended is among the attempts of
    the finding.

    Args:
        subject: the model made ready, with a shape of its inputs.
        share: what was sent.
        recovery: what was recovered from it.
        options: how long to search, and how pixels became inputs.
    """
    began = time.perf_counter()
    found, ending = _solved(subject, share, recovery, options)
    if found is not None and found.proved and (proved := _described(found, recovery, options)):
        shown = Attempt(GAUSS_NEWTON, Outcome.of(proved.leaked), proved.message)
        return replace(proved, attempts=(shown,))
    left = max(options.seconds - (time.perf_counter() - began), 0.0)
    if options.seconds > 0:
        left = max(left, (1 - SOLVING.part) * options.seconds)
    matched = match_input(subject, share, recovery, replace(options, seconds=left))
    if matched is None:
        return None
    message = matched.message
    if ending.outcome is not Outcome.NOT_APPLICABLE:
        message = f"{message}; Gauss–Newton proved no image: {ending.why}"
    certificate = None if found is None else found.certificate
    return replace(matched, message=message, certificate=certificate, attempts=(ending,))


def _solved(
    subject: Subject, share: GradientShare, recovery: Recovery | BatchRecovery, options: Options
) -> tuple[Reconstruction | None, Attempt]:
    """Return what Gauss–Newton found, if it was tried, and how it ended."""
    try:
        if why := _inapplicable(subject, recovery, options):
            return None, Attempt(GAUSS_NEWTON, Outcome.NOT_APPLICABLE, why)
        matching = Matching(
            optimiser=SOLVING.method,
            restarts=SOLVING.restarts,
            seconds=SOLVING.part * options.seconds,
        )
        shaped = replace(subject, said_shape=subject.input_shape)
        (found,) = matching(shaped, [share], [recovery])
    except Exception as error:  # the model's own code and torch may raise anything
        why = f"it could not be carried out: {in_a_line(error)}"
        return None, Attempt(GAUSS_NEWTON, Outcome.NOT_CARRIED_OUT, why)
    return found, Attempt(GAUSS_NEWTON, Outcome.of(found.proved), found.message)


def _inapplicable(subject: Subject, recovery: Recovery | BatchRecovery, options: Options) -> str:
    """Return why Gauss–Newton does not apply, or nothing if it does."""
    shape, method = subject.input_shape, SOLVING.method
    if options.seconds <= 0:
        return "no time was given to search for inputs"
    if not isinstance(shape, tuple):
        return "the shape of an input is not known"
    inputs = recovery.size if isinstance(recovery, BatchRecovery) else 1
    if (unknowns := inputs * math.prod(shape)) > method.dense:
        return f"{unknowns} unknown numbers are too many; an audit solves for {method.dense}"
    return method.roughness(subject, shape)


def _described(
    found: Reconstruction, recovery: Recovery | BatchRecovery, options: Options
) -> InputFinding | None:
    """Return an image as a finding, with the PSNR that its certificate predicts, if it has both."""
    if found.input is None or found.certificate is None:
        return None
    to_pixels = PixelMap.of(found.input, options.normalisation)
    several, pixels = isinstance(recovery, BatchRecovery), to_pixels(found.input)
    message = (
        "the equations of all layers determine every pixel, and "
        f"{'these images fulfil' if several else 'this image fulfils'} them to within rounding"
    )
    return InputFinding(
        Method.SOLVING,
        message,
        pixels[0] if several else pixels,
        found.certificate.psnr_predicted(to_pixels.scale),
        determined=True,
        to_pixels=to_pixels,
        misfit=found.misfit,
        certificate=found.certificate,
        batch=tuple(pixels) if several else (),
    )
