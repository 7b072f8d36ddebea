"""This module reads the texts of a small batch from the first two attention layers.

The first layer's gradient spans the vectors of all tokens of the batch, so it says which tokens
stand at each place. Which of them belong together is told by the second layer (the idea of DAGER):
what a text makes of its tokens there lies in the second span only if it is one of the batch. A
causal model is read from left to right; in others whole texts are improved token by token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.inversion.texts.both_ways import both_ways
from softleak.inversion.texts.first_layer import FirstLayer, first_layer, second_layer
from softleak.inversion.texts.resimulation import batch_misfit
from softleak.inversion.texts.span_check import FROM_SPAN, SPAN, distances, nearest_tokens, span_of
from softleak.inversion.texts.text_plan import NoText
from softleak.inversion.texts.text_result import Certainty, Place, Text
from softleak.share import GradientShare
from softleak.subject import Subject


@dataclass(frozen=True)
class BatchSearch:
    """These settings bound the search for texts.

    Attributes:
        inside: the relative distance from the second span up to which a text counts as inside.
        kept: the number of tokens that are tried at each place.
    """

    inside: float = 4e-4
    kept: int = 128


BATCH_SEARCH = BatchSearch()


def read_batch(
    subject: Subject, share: GradientShare, labels: Tensor | None = None
) -> tuple[Text, ...] | NoText:
    """Return the texts of a batch, in no order; their tokens are likely, not certain.

    Args:
        subject: the model; its inputs are sequences of tokens.
        share: what the client sent, for a few texts in one step.
        labels: (B, C) what was recovered of the labels, in any order. With them the texts are
            checked by computing their gradient again.
    """
    layer, above = subject.once(first_layer), subject.once(second_layer)
    if layer is None or above is None or not layer.ordered or layer.spec.length is None:
        return NoText("the model has no two attention layers that tell words and their places")
    # Tokens of the batch may lie in the span at other places too, so many are kept.
    words, kept = range(layer.spec.tokens.below or 0), BATCH_SEARCH.kept
    nearest = nearest_tokens(layer, share, words, layer.spec.length, kept)
    basis = span_of(above, share)
    if nearest is None or basis is None:
        return NoText("the share lacks the gradients of the first two attention layers")
    if nearest.full or basis.shape[0] == basis.shape[1]:
        return NoText("there are as many tokens as a layer is wide, so no token is excluded")
    inside = nearest.distance <= SPAN.inside
    options = [nearest.tokens[inside[:, i], i].tolist() for i in range(inside.shape[1])]
    while options and not options[-1]:
        options.pop()
    if not options or not all(options):
        return NoText("no token lies in the span of the first attention layer's gradient")
    search = _Search(above, basis, options)
    wanted = None if labels is None else len(labels)
    found = (
        search.forward()
        if search.causal
        else both_ways(search.far, options, BATCH_SEARCH.inside, wanted)
    )
    if not found:
        return NoText(
            "too many tokens are possible at each place for the texts of the batch to be told apart"
        )
    left = math.inf
    if labels is not None:
        left = batch_misfit(subject.model, layer.spec, share, found, labels)
    return tuple(_text(ids, left) for ids in found)


@dataclass(frozen=True, eq=False)
class _Search:
    """The second layer, the basis (d, r) of its span, and the tokens possible at each place."""

    layer: FirstLayer
    basis: Tensor
    options: list[list[int]]

    @property
    def causal(self) -> bool:
        """Return whether a token changes nothing of what stands before it."""
        ids = torch.tensor([[one[0] for one in self.options]] * 2)
        ids[1, -1] = (ids[1, -1] + 1) % (self.layer.spec.tokens.below or 2)
        first, second = self.layer.embedded(ids)
        return len(first) > 1 and bool((first[:-1] - second[:-1]).abs().max() < 1e-6)

    def far(self, ids: Tensor) -> Tensor:
        """Return the distance (B, L) of each token of texts (B, L) from the second span."""
        return distances(self.layer.embedded(ids), self.basis)

    def forward(self) -> list[list[int]]:
        """Return the texts of a causal model: each prefix is extended while it stays inside."""
        first = torch.tensor(self.options[0])[:, None]
        open_ = first[self.far(first)[:, 0] <= BATCH_SEARCH.inside].tolist()
        done: list[list[int]] = []
        for options in self.options[1:]:
            longer: list[list[int]] = []
            for ids in open_:
                tried = torch.tensor([[*ids, token] for token in options])
                near = self.far(tried)[:, -1] <= BATCH_SEARCH.inside
                longer += tried[near].tolist()
                done += [] if bool(near.any()) else [ids]
            open_ = longer
        return done + open_


def _text(ids: list[int], left: float) -> Text:
    places = tuple(Place(i, token, Certainty.LIKELY) for i, token in enumerate(ids))
    message = "every token lies in the spans of the first two attention layers"
    if math.isfinite(left):
        message += f"; the gradient of all texts together differs from the share by {left:.1e}"
    return Text(places, (), left <= SPAN.explained, FROM_SPAN, message)
