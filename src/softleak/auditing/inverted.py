"""Exact inversion as an audit runs it: where the model is a chain of layers."""

from __future__ import annotations

from dataclasses import replace

from softleak.auditing.audit_options import Options
from softleak.auditing.findings import InputFinding, Method
from softleak.auditing.pixels import PixelMap
from softleak.data import Normalisation
from softleak.inversion.chained import NoChain, chain_of
from softleak.inversion.walk import Inversion, invert
from softleak.results import Recovery
from softleak.share import GradientShare
from softleak.subject import Subject


def invert_input(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> InputFinding:
    """Compute the input layer by layer, with its predicted error; or say why it cannot be."""
    chain = subject.once(chain_of)
    if isinstance(chain, NoChain):
        return InputFinding(Method.NONE, chain.reason)
    inverted = invert(subject.model, share, recovery, chain=chain)
    return _described(inverted, options.normalisation)


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
