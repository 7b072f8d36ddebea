"""This module reads inputs from the gradients of embeddings, as an audit runs it: no label needed.

It reads the patches of a vision transformer, and the words of a text.
"""

from __future__ import annotations

from dataclasses import replace

from softleak.auditing.audit_options import Options
from softleak.auditing.findings import InputFinding, Method
from softleak.auditing.pixels import PixelMap
from softleak.input_spec import InputSpec
from softleak.inversion.patch_inverse import invert_patches
from softleak.inversion.patch_plan import NoPlan, patch_plan
from softleak.inversion.texts.read_text import read_bag, read_text
from softleak.inversion.texts.text_plan import NoText, TextPlan, text_plan
from softleak.inversion.texts.text_result import Text
from softleak.results import Recovery, Status
from softleak.share import GradientShare
from softleak.subject import Subject


def invert_embedded(
    subject: Subject, share: GradientShare, recovery: Recovery, options: Options
) -> InputFinding | None:
    """Compute the input from the gradients of embeddings; None if the model has none for it."""
    if recovery.noise:
        share = share.expecting(recovery.noise)
    if isinstance(subject.input_shape, InputSpec):
        return _text(subject, share, recovery)
    plan = subject.once(patch_plan)
    if isinstance(plan, NoPlan) or not {plan.weight, plan.positions} <= share.keys():
        return None
    found = invert_patches(plan, share)
    if not found.input.isfinite().all():
        return InputFinding(Method.EMBEDDING, "the equations have no finite solution")
    pixels = PixelMap.of(found.input, options.normalisation)
    return InputFinding(
        Method.EMBEDDING,
        found.message,
        pixels(found.input),
        replace(found, pixel=pixels.scale).psnr_predicted,
        found.determined,
        found.layers,
        pixels,
    )


def embeddings(subject: Subject) -> tuple[str, ...]:
    """Return the parameters that tell the input by themselves; a client may freeze them."""
    if isinstance(subject.input_shape, InputSpec):
        text = subject.once(text_plan)
        if not isinstance(text, TextPlan):
            return ()
        return (text.words,) if text.positions is None else (text.words, text.positions)
    plan = subject.once(patch_plan)
    return () if isinstance(plan, NoPlan) else (plan.weight, plan.positions)


def _text(subject: Subject, share: GradientShare, recovery: Recovery) -> InputFinding:
    found = read_text(subject, share, recovery)
    several = recovery.status is Status.NOT_SINGLE
    if several and isinstance(found, Text) and not found.explained:
        found = read_bag(subject, share, "the update mixes several texts, or was changed")
    return text_finding(found)


def text_finding(found: Text | NoText) -> InputFinding:
    """Return a text as a finding, or why there is none."""
    if isinstance(found, NoText):
        return InputFinding(Method.NONE, found.reason)
    return InputFinding(Method.TEXT, found.message, determined=found.certain, text=found)
