"""This module reads the words behind a share by the strongest way that its gradients allow."""

from __future__ import annotations

from collections.abc import Sequence

from softleak.input_spec import InputSpec
from softleak.inversion.texts.first_layer import FirstLayer, first_layer
from softleak.inversion.texts.read_embeddings import read_embeddings, read_words
from softleak.inversion.texts.resimulation import TextResimulation
from softleak.inversion.texts.span_check import nearest_tokens, read_span, read_unordered
from softleak.inversion.texts.text_plan import NoText, TextPlan, text_plan
from softleak.inversion.texts.text_result import Text
from softleak.results import Recovery
from softleak.share import GradientShare
from softleak.subject import Subject

FROM_WORDS = "the gradient of the word embeddings"


def read_text(subject: Subject, share: GradientShare, recovery: Recovery | None) -> Text | NoText:
    """Return the text behind a share, with the certainty of each word; or why there is none.

    Args:
        subject: the model; its inputs are sequences of tokens.
        share: what the client sent.
        recovery: what was found of the label. With it a text can be checked by computing its
            gradient again, where embeddings send none.
    """
    plan = subject.once(text_plan)
    if isinstance(plan, NoText):
        return plan
    words: tuple[int, ...] = ()
    if plan.sound and plan.words in share:
        if plan.positions is not None and plan.positions in share:
            return read_embeddings(plan, share)
        rows = read_words(plan, share)
        words = () if rows.noise or rows.crowded else tuple(rows.index.tolist())
    reason = _reason(plan, share)
    layer = subject.once(first_layer)
    found = None if layer is None else _by_span(subject, layer, share, words, recovery)
    if found is None:
        if words:
            return _bag(words, reason)
        return NoText(
            f"{reason}, and the weights that read the embedded tokens first send no gradient "
            "either: softleak has no way to their words"
        )
    if words and not found.places:
        return _bag(words, reason)
    return Text(
        found.places, found.words, found.explained, found.method, f"{reason}; {found.message}"
    )


def read_bag(subject: Subject, share: GradientShare, reason: str) -> Text | NoText:
    """Return which words occur in an update, without places; or why they cannot be told.

    Args:
        subject: the model; its inputs are sequences of tokens.
        share: what the client sent, of one or several texts and steps.
        reason: why the order of the words is not known.
    """
    plan = subject.once(text_plan)
    if isinstance(plan, NoText):
        return plan
    if not plan.sound or plan.words not in share:
        return NoText(f"{_reason(plan, share)}: which words occur cannot be told")
    rows = read_words(plan, share)
    if rows.crowded:
        return NoText("nearly all rows of the word table moved, so that no word can be told")
    return _bag(tuple(rows.index.tolist()), reason)


def _by_span(
    subject: Subject,
    layer: FirstLayer,
    share: GradientShare,
    words: Sequence[int],
    recovery: Recovery | None,
) -> Text | None:
    """Return what the first layer's gradient tells, if it was sent."""
    told = share.input_shape if isinstance(share.input_shape, InputSpec) else layer.spec
    length = told.length or layer.spec.length or 1
    possible = words or range(layer.spec.tokens.below or 0)
    if words and not layer.ordered:
        return _bag(tuple(words), "a word enters the first layer alike at every place")
    nearest = nearest_tokens(layer, share, possible, length)
    if nearest is None:
        return None
    if not layer.ordered:
        return read_unordered(nearest)
    label = None if recovery is None else recovery.label
    check = None if label is None else TextResimulation(subject.model, layer.spec, share, label)
    return read_span(nearest, check, words)


def _reason(plan: TextPlan, share: GradientShare) -> str:
    if plan.reason:
        return plan.reason
    missing = plan.words if plan.words not in share else plan.positions
    return f"the share lacks {missing}"


def _bag(words: tuple[int, ...], reason: str) -> Text:
    message = f"{len(words)} words occur, in an order that is not known: {reason}"
    return Text((), words, False, FROM_WORDS, message)
