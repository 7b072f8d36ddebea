"""The input behind a share: computed exactly where the model is a chain, else searched for.

The one place where the method is chosen: invert, and match gradients where that is not enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from softleak.audit.findings import InputFinding, Method
from softleak.audit.matched import match_input
from softleak.audit.pixels import PixelMap
from softleak.audit.subject import Subject
from softleak.audit.undecayed import undecayed
from softleak.data import Normalisation
from softleak.errors import in_a_line
from softleak.inversion.walk import Inversion, invert
from softleak.results import Recovery
from softleak.share import GradientShare


def recover_input(
    subject: Subject,
    share: GradientShare,
    recovery: Recovery,
    normalisation: Normalisation | None,
    seconds: float = 0.0,
) -> InputFinding:
    """The input by the strongest method that applies; at most so many ``seconds`` of matching.

    Whatever goes wrong in an attack, in the model's own code or in torch, ends that attack with a
    reason and nothing else.
    """
    if recovery.feature is None:
        return InputFinding(Method.NONE, "no feature was recovered to start from")
    start = time.perf_counter()
    parameters = dict(subject.model.named_parameters())
    shares = [one.share for one in undecayed(subject.head, share, parameters)] or [share]
    tries = [(_inverted(subject, one, recovery, normalisation), one) for one in shares]
    found, share = max(tries, key=lambda pair: (pair[0].leaked, pair[0].quality))
    if not found.leaked and seconds > 0 and subject.input_shape is not None:
        matched = _attempted(
            lambda: match_input(subject, share, recovery, normalisation, seconds), "matching"
        )
        found = _better(found, matched)
    return replace(found, seconds=time.perf_counter() - start)


def _inverted(
    subject: Subject,
    share: GradientShare,
    recovery: Recovery,
    normalisation: Normalisation | None,
) -> InputFinding:
    if subject.chain is None:
        return InputFinding(Method.NONE, subject.no_chain)

    def attack() -> InputFinding:
        inverted = invert(subject.model, share, recovery, chain=subject.chain)
        return _described(inverted, normalisation)

    return _attempted(attack, "inversion")


def _attempted(attack: Callable[[], InputFinding], name: str) -> InputFinding:
    """The outcome of an attack, or in one line why it could not be carried out."""
    try:
        return attack()
    except Exception as error:  # the model's own code and torch may raise anything
        return InputFinding(Method.NONE, f"{name} could not be carried out: {in_a_line(error)}")


def _better(inverted: InputFinding, matched: InputFinding) -> InputFinding:
    """Of two attempts the one whose image should be better; the other is mentioned."""
    why = inverted.message.partition(";")[0]
    if matched.pixels is None:
        return replace(inverted, message=f"{why}; {matched.message}")
    if matched.quality >= inverted.quality:
        return replace(matched, message=f"{why}, so {matched.message}")
    return replace(inverted, message=f"{why}; matching gradients was tried and is no better")


def _described(found: Inversion, normalisation: Normalisation | None) -> InputFinding:
    if not found.input.isfinite().all():
        return InputFinding(Method.INVERSION, "the equations have no finite solution")
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
