"""The public ``invert``: the way that a model allows, from a share to its input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from softleak.core.errors import ModelError
from softleak.core.input_spec import InputSpec, Layout
from softleak.core.results import Recovery
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion import walk
from softleak.inversion.chain import Chain
from softleak.inversion.patch_plan import Lacks, NoPlan, patch_plan
from softleak.inversion.patches import invert_patches
from softleak.inversion.state import LayerReport
from softleak.inversion.texts.plan import Certainty, NoText, Text
from softleak.inversion.texts.read import read_batch, read_text
from softleak.inversion.texts.span import FROM_SPAN
from softleak.inversion.walk import Inversion


def invert(
    model: nn.Module,
    share: GradientShare,
    recovery: Recovery | Sequence[Recovery] | None = None,
    *,
    chain: Chain | None = None,
    input_shape: Layout | None = None,
    pixel: Tensor | float = 1.0,
) -> Inversion:
    """Recover the input behind a share exactly, by the way that the model allows.

    The words of a text and the patches of a vision transformer are computed from the gradients of
    their embeddings; a sequential network is walked back layer by layer.

    Args:
        model: The model, in eval mode.
        share: The gradients that the client sent.
        recovery: What ``recover_label`` found in the share. A walk starts from it; embeddings
            tell their input without it. Of a batch of texts, what ``recover_batch`` found of each
            sample.
        chain: The network prepared by ``Chain.of``, once for many shares.
        input_shape: The input's shape or specification, if the share does not say it.
        pixel: The standard deviation that inputs were divided by, so that predictions are in
            pixels of range one.

    Returns:
        The input, its predicted error and a report. Of a text, the input holds the token ids and
        ``text`` says of each how certain it is. The texts of a batch whose embeddings are frozen
        are in ``texts``.

    Raises:
        ShareError: If the share lacks a gradient, or the recovery a feature.
        ModelError: If the model is none of these.
    """
    layout = input_shape or share.input_shape
    if chain is None and layout is not None:
        return invert_subject(Subject.of(model, layout), share, recovery, pixel=pixel)
    return walk.invert(
        model, share, _needed(recovery), chain=chain, input_shape=_plain(layout), pixel=pixel
    )


def invert_subject(
    subject: Subject,
    share: GradientShare,
    recovery: Recovery | Sequence[Recovery] | None,
    *,
    pixel: Tensor | float = 1.0,
) -> Inversion:
    """Recover the input behind a share of a subject, as ``invert`` does for a model.

    What has to be found out of the model is found once for all shares of a subject.
    """
    samples = (recovery,) if isinstance(recovery, Recovery) else tuple(recovery or ())
    noise = max((one.noise or 0.0 for one in samples), default=0.0)
    share = share.expecting(noise) if noise else share
    if isinstance(subject.input_shape, InputSpec):
        return _texts(subject, share, samples)
    plan = subject.once(patch_plan)
    if not isinstance(plan, NoPlan) and {plan.weight, plan.positions} <= share.keys():
        return invert_patches(plan, share, pixel)
    shape = _plain(subject.input_shape)
    try:
        return walk.invert(subject.model, share, _needed(samples), input_shape=shape, pixel=pixel)
    except ModelError as error:
        if isinstance(plan, NoPlan) and plan.lacks is Lacks.POSITIONS:
            raise
        why = plan.reason if isinstance(plan, NoPlan) else "the share lacks their gradients"
        raise ModelError(f"{error}; nor do its embeddings tell the image: {why}") from error


def _texts(subject: Subject, share: GradientShare, samples: Sequence[Recovery]) -> Inversion:
    """Return the text behind a share; where it is none by itself, the texts of a batch."""
    found = read_text(subject, share, samples[0] if len(samples) == 1 else None)
    if isinstance(found, NoText):
        raise ModelError(f"the text cannot be read: {found.reason}")
    made = as_inversion(found)
    if found.method != FROM_SPAN or found.explained:
        return made
    labels = [one.label for one in samples if one.label is not None]
    several = read_batch(subject, share, torch.stack(labels) if len(labels) > 1 else None)
    if isinstance(several, NoText) or (len(several) < 2 and len(samples) < 2):
        return made
    count = "1 text was" if len(several) == 1 else f"{len(several)} texts were"
    message = f"{count} told apart: {several[0].message}"
    return replace(made, texts=several, message=message)


def as_inversion(text: Text) -> Inversion:
    """Return a text in the form of every inversion: token ids (L,), −1 where none is known."""
    ids = [-1 if token is None else token for token in text.tokens]
    sure = [place.certainty in (Certainty.CERTAIN, Certainty.EMPTY) for place in text.places]
    error = torch.tensor([0.0 if one else float("inf") for one in sure], dtype=torch.double)
    known = text.count(Certainty.CERTAIN, Certainty.LIKELY, Certainty.EMPTY)
    report = LayerReport(text.method, known, len(text.places), 1.0, 1.0, text.certain)
    made = Inversion(torch.tensor(ids, dtype=torch.long), error, (report,), torch.tensor(1.0))
    return replace(made, message=text.message, text=text)


def _needed(recovery: Recovery | Sequence[Recovery] | None) -> Recovery:
    """Return the one recovery that a walk starts from."""
    if isinstance(recovery, Recovery):
        return recovery
    if recovery is None or len(recovery) != 1:
        raise ModelError(
            "this model is walked back from its recovered feature; pass what recover_label found "
            f"of one sample, got {len(recovery or ())} recoveries"
        )
    return recovery[0]


def _plain(layout: Layout | None) -> tuple[int, ...] | None:
    return layout if isinstance(layout, tuple) else None
