"""Gradient matching as an audit runs it: two independent starts, within a time."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from softleak.audit.findings import InputFinding, Method
from softleak.audit.pixels import PixelMap
from softleak.audit.subject import Subject
from softleak.capture import forward_one
from softleak.data import Normalisation
from softleak.matching import Adam, Noise, Reconstruction, pass_on_interrupt, reconstruct
from softleak.metrics import psnr
from softleak.results import Recovery
from softleak.share import GradientShare

STARTS = (Noise(0), Noise(1))
TRIAL = 4  # steps that tell how long one takes
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
    agreement = psnr(pixels[0], pixels[1]) if len(pixels) > 1 else None
    said = "" if agreement is None else f", and two starts agree to {agreement:.0f} dB"
    message = (
        f"gradients were matched: that of this image differs from the share's by {best.misfit:.0%}"
        f"{said}"
    )
    return InputFinding(
        Method.MATCHING, message, to_pixels(best.input), to_pixels=to_pixels, misfit=best.misfit,
        agreement=agreement,
    )  # fmt: skip


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

    begin = time.perf_counter()
    tried = run(TRIAL, seconds)
    pass_on_interrupt(tried)
    spent = time.perf_counter() - begin
    steps = min(Adam().steps, max(FEWEST, int(PART * (seconds - spent) / spent * TRIAL)))
    return run(steps, max(seconds - spent, 0.0))


def misfit_of(
    subject: Subject, share: GradientShare, recovery: Recovery, x: Tensor
) -> float | None:
    """What remains of the share if the gradient of an input is taken off, relative to its size."""
    if recovery.label is None or subject.input_shape is None:
        return None
    own = {n: p for n, p in subject.model.named_parameters() if n in share and p.requires_grad}
    with torch.enable_grad():
        logits, _ = forward_one(subject.model, x.reshape(subject.input_shape))
        label = recovery.label.to(logits)
        loss = -(torch.log_softmax(logits[0], -1) * label).sum()
        found = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
    off = size = 0.0
    for name, gradient in zip(own, found, strict=True):
        sent = share[name].double() / recovery.scale
        size += float(sent.square().sum())
        ours = torch.zeros_like(sent) if gradient is None else gradient.double()
        off += float((ours - sent).square().sum())
    return float((off / size) ** 0.5) if size else None
