"""Read the texts of a small batch from the first two attention layers.

The first layer's gradient spans the vectors of all tokens of the batch, so it says which tokens
stand at each place. Which of them belong together is told by the second layer (the idea of DAGER):
what a text makes of its tokens there lies in the second span only if it is one of the batch. A
causal model is read from left to right; in others whole texts are improved token by token.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from softleak.core.input_spec import InputSpec
from softleak.core.results import Recovery
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.results import Certainty, NoWay, Place, Text
from softleak.inversion.texts.embeddings import (
    ROWS_CROWDED,
    TextPlan,
    read_embeddings,
    read_words,
    text_plan,
)
from softleak.inversion.texts.language import extended, last_token, whole_text
from softleak.inversion.texts.span import (
    FROM_SPAN,
    SPAN_EXPLAINED,
    FirstLayer,
    batch_misfit,
    distances,
    filled,
    first_layer,
    nearest_tokens,
    read_span,
    read_unordered,
    second_layer,
    span_of,
)
from softleak.numerics.least_squares import TINY
from softleak.resimulation import relative_misfit

# What bounds the search.
DESCENT_STARTS = 16  # the number of mixtures that are improved at a time
DESCENT_SWEEPS = 8  # how often each place of a text is tried again at most
DESCENT_ROUNDS = 3  # how often new mixtures are drawn for texts of one length
# The mean number of tokens that are possible at a place from which on mixtures lead nowhere, and
# nothing is tried.
DESCENT_CROWDED = 8.0
# The part of a new mixture's tokens that no text found so far has, where possible.
DESCENT_FRESH = 0.85
DESCENT_SEED = 0  # the seed of the mixtures


def both_ways(
    layer: FirstLayer, basis: Tensor, options: list[list[int]], wanted: int | None
) -> list[list[int]]:
    """Return the texts all of whose tokens lie in the span of the second layer."""
    if sum(map(len, options)) > DESCENT_CROWDED * len(options):
        return []

    def far(ids: Tensor) -> Tensor:
        return distances(layer.embedded(ids), basis)

    generator = torch.Generator().manual_seed(DESCENT_SEED)
    found: list[list[int]] = []
    for _ in range(DESCENT_ROUNDS):
        for length in _lengths(options):
            mixtures = _mixtures(options[:length], found, generator)
            for ids in _improved(far, options, mixtures):
                found += [] if ids in found else [ids]
            if wanted is not None and len(found) >= wanted:
                return found
    return found


def _lengths(options: list[list[int]]) -> Iterator[int]:
    """Yield the lengths that texts may have: all end with a token that may end the longest."""
    ends = set(options[-1])
    for length in range(len(options), 1, -1):
        if ends & set(options[length - 1]):
            yield length


def _mixtures(
    options: list[list[int]], found: list[list[int]], generator: torch.Generator
) -> Tensor:
    """Return random texts (starts, L), mostly of tokens that no text has that was found."""
    columns = []
    for place, some in enumerate(options):
        new = [t for t in some if all(place >= len(ids) or ids[place] != t for ids in found)]
        fresh = torch.rand(DESCENT_STARTS, generator=generator) < DESCENT_FRESH
        first, second = _drawn(new or some, generator), _drawn(some, generator)
        columns.append(torch.where(fresh, first, second))
    return torch.stack(columns, 1)


def _drawn(tokens: list[int], generator: torch.Generator) -> Tensor:
    return torch.tensor(tokens)[torch.randint(len(tokens), (DESCENT_STARTS,), generator=generator)]


def _improved(
    far: Callable[[Tensor], Tensor], options: list[list[int]], ids: Tensor
) -> list[list[int]]:
    """Return the texts that mixtures (starts, L) become, as far as they end inside the span."""
    for _ in range(DESCENT_SWEEPS):
        before = ids.clone()
        for place, some in enumerate(options[: ids.shape[1]]):
            if len(some) > 1:
                tried = ids[:, None].repeat(1, len(some), 1)
                tried[:, :, place] = torch.tensor(some)
                total = far(tried.flatten(0, 1)).sum(1).view(len(ids), -1)
                ids[:, place] = torch.tensor(some)[total.argmin(1)]
        if torch.equal(before, ids):
            break
    unique = torch.unique(ids, dim=0)
    texts: list[list[int]] = unique[far(unique).amax(1) <= BATCH_SEARCH_INSIDE].tolist()
    return texts


FROM_WORDS = "the gradient of the word embeddings"


def read_text(subject: Subject, share: GradientShare, recovery: Recovery | None) -> Text | NoWay:
    """Return the text behind a share; that of a language model to its last token.

    The arguments are those of ``read_used``.
    """
    found = read_used(subject, share, recovery)
    if isinstance(found, NoWay) or not subject.head.each_token:
        return found
    return whole_text(subject, share, found)


def read_used(subject: Subject, share: GradientShare, recovery: Recovery | None) -> Text | NoWay:
    """Return the tokens with a gradient, with the certainty of each; or why there are none.

    Args:
        subject: the model; its inputs are sequences of tokens.
        share: what the client sent.
        recovery: what was found of the label. With it a text can be checked by computing its
            gradient again, where embeddings send none.
    """
    plan = subject.once(text_plan)
    if isinstance(plan, NoWay):
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
    if words and (found is None or not found.places):
        return _bag(words, reason)
    if found is None:
        return NoWay(
            f"{reason}, and the weights that read the embedded tokens first send no gradient "
            "either: softleak has no way to their words"
        )
    return replace(found, message=f"{reason}; {found.message}")


def read_bag(subject: Subject, share: GradientShare, reason: str) -> Text | NoWay:
    """Return which words occur in an update, without places; or why they cannot be told.

    Rows of words that do not occur stay as they were in any step of any optimiser, or weight decay
    moves them along themselves.
    """
    plan = subject.once(text_plan)
    if isinstance(plan, NoWay):
        return plan
    if not plan.sound or plan.words not in share:
        return NoWay(f"{_reason(plan, share)}: which words occur cannot be told")
    rows = read_words(plan, _without_decay(subject, plan, share))
    if len(rows.index) > ROWS_CROWDED * len(share[plan.words]):
        return NoWay("nearly all rows of the word table moved, so that no word can be told")
    return _bag(tuple(rows.index.tolist()), reason)


def _without_decay(subject: Subject, plan: TextPlan, share: GradientShare) -> GradientShare:
    """Return the share without what its word table moved along its own rows, if all rows moved."""
    if not read_words(plan, share).crowded:
        return share
    rows, own = share[plan.words].double(), subject.parameters[plan.words].detach().double()
    part = (rows * own).sum(1) / own.square().sum(1).clamp_min(TINY)
    left = rows - part[:, None] * own
    return replace(share, gradients={**share.gradients, plan.words: left})


def _by_span(
    subject: Subject,
    layer: FirstLayer,
    share: GradientShare,
    words: Sequence[int],
    recovery: Recovery | None,
) -> Text | None:
    """Return what the first layer's gradient tells, if it was sent."""
    told = share.input_shape.length if isinstance(share.input_shape, InputSpec) else None
    length = told or _longest(subject, layer, share)
    possible = words or range(layer.spec.tokens.below or 0)
    if words and not layer.ordered:
        return _bag(tuple(words), "a word enters the first layer alike at every place")
    nearest = nearest_tokens(layer, share, possible, length if layer.ordered else 1)
    if nearest is None:
        return None
    if not layer.ordered:
        return read_unordered(nearest)
    if subject.head.each_token:
        return read_span(nearest, lambda ids: _language_misfit(subject, layer, share, ids), words)
    label = None if recovery is None else recovery.label
    if label is None:
        return read_span(nearest, None, words)
    return read_span(
        nearest,
        lambda ids: relative_misfit(subject.model, share, filled(layer.spec, ids), label),
        words,
    )


def _longest(subject: Subject, layer: FirstLayer, share: GradientShare) -> int:
    """Return how many places the text may have: tokens that differ, of as many as positions."""
    basis = span_of(layer, share)
    config = getattr(subject.model, "config", None)
    most = getattr(config, "max_position_embeddings", None) or layer.spec.length or 1
    return most if basis is None else max(min(most, basis.shape[1] + 1), 1)


def _language_misfit(
    subject: Subject, layer: FirstLayer, share: GradientShare, stem: Tensor
) -> float:
    """Return what a language model's text leaves of a share, with the last token that fits best."""
    last, _ = last_token(subject, share, stem.tolist())
    ids = torch.cat([stem, stem.new_tensor([last])])
    return relative_misfit(subject.model, share, filled(layer.spec, ids), None)


def _reason(plan: TextPlan, share: GradientShare) -> str:
    missing = plan.words if plan.words not in share else plan.positions
    return plan.reason or f"the share lacks {missing}"


def _bag(words: tuple[int, ...], reason: str) -> Text:
    message = f"{len(words)} words occur, in an order that is not known: {reason}"
    return Text((), words, False, FROM_WORDS, message)


# What bounds the search for texts.
# The relative distance from the second span up to which a text counts as inside.
BATCH_SEARCH_INSIDE = 4e-4
BATCH_SEARCH_KEPT = 128  # the number of tokens that are tried at each place


def read_batch(
    subject: Subject, share: GradientShare, labels: Tensor | None = None
) -> tuple[Text, ...] | NoWay:
    """Return the texts of a batch, in no order; their tokens are likely, not certain.

    Args:
        subject: the model; its inputs are sequences of tokens.
        share: what the client sent, for a few texts in one step.
        labels: (B, C) what was recovered of the labels, in any order. With them the texts are
            checked by computing their gradient again.
    """
    layer, above = subject.once(first_layer), subject.once(second_layer)
    if layer is None or above is None or not layer.ordered or layer.spec.length is None:
        return NoWay("the model has no two attention layers that tell words and their places")
    # Tokens of the batch may lie in the span at other places too, so many are kept.
    words, kept = range(layer.spec.tokens.below or 0), BATCH_SEARCH_KEPT
    nearest = nearest_tokens(layer, share, words, layer.spec.length, kept)
    basis = span_of(above, share)
    if nearest is None or basis is None:
        return NoWay("the share lacks the gradients of the first two attention layers")
    if nearest.full or basis.shape[0] == basis.shape[1]:
        return NoWay("there are as many tokens as a layer is wide, so no token is excluded")
    options = [nearest.inside(i) for i in range(nearest.distance.shape[1])]
    while options and not options[-1]:
        options.pop()
    if not options or not all(options):
        return NoWay("no token lies in the span of the first attention layer's gradient")
    wanted = None if labels is None else len(labels)
    found = _inside(above, basis, options, wanted)
    if not found:
        return NoWay(
            "too many tokens are possible at each place for the texts of the batch to be told apart"
        )
    left = math.inf
    if labels is not None:
        left = batch_misfit(subject.model, layer.spec, share, found, labels)
    return tuple(_text(ids, left) for ids in found)


def _inside(
    layer: FirstLayer, basis: Tensor, options: list[list[int]], wanted: int | None
) -> list[list[int]]:
    """Return the texts within the span: where no token changes what stands before it, in order."""
    ids = torch.tensor([[one[0] for one in options]] * 2)
    ids[1, -1] = (ids[1, -1] + 1) % (layer.spec.tokens.below or 2)
    first, second = layer.embedded(ids)
    if len(first) < 2 or bool((first[:-1] - second[:-1]).abs().max() >= 1e-6):
        return both_ways(layer, basis, options, wanted)
    stems = extended(layer, basis, options, BATCH_SEARCH_INSIDE, sys.maxsize)
    return [list(stem.tokens) for stem in stems]


def _text(ids: list[int], left: float) -> Text:
    places = tuple(Place(i, token, Certainty.LIKELY) for i, token in enumerate(ids))
    message = "every token lies in the spans of the first two attention layers"
    if math.isfinite(left):
        message += f"; the gradient of all texts together differs from the share by {left:.1e}"
    return Text(places, (), left <= SPAN_EXPLAINED, FROM_SPAN, message)
