"""Read words from the first attention layer, where embeddings send no gradient.

The gradient of the layer's weight spans the vectors of the tokens that entered it, so a token at a
place is possible only if its vector lies in that span (the idea of DAGER, NeurIPS 2024). Tokens at
wrong places may lie in it too, so the text is checked by computing its gradient again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softleak.core.share import GradientShare
from softleak.inversion.texts.first_layer import FirstLayer, TextResimulation
from softleak.inversion.texts.plan import Certainty, Place, Text

# What says which vectors lie in the span, and when a text is explained.
SPAN_ROUNDINGS = 2.5  # singular values below this many roundings of the largest are rounding
SPAN_INSIDE = 2e-2  # the relative distance from the span up to which a vector counts as inside
SPAN_KEPT = 4  # the number of tokens of each place that are remembered, the nearest first
SPAN_EXPLAINED = 1e-3  # the relative misfit of a re-simulated share that counts as rounding
SPAN_WORSE = 10.0  # by what factor another token has to fit worse for this one to be certain
# The largest number of texts whose gradient is computed in search of a better one.
SPAN_TRIALS = 400


FROM_SPAN = "the span of the first attention layer's gradient"


@dataclass(frozen=True, eq=False)
class Nearest:
    """The tokens (kept, L) nearest to the span at each place, and their distances."""

    tokens: Tensor
    distance: Tensor
    rank: int
    width: int

    @property
    def full(self) -> bool:
        """Return whether the gradient spans everything, so that no token is excluded."""
        return self.rank >= self.width


def span_of(layer: FirstLayer, share: GradientShare) -> Tensor | None:
    """Return an orthonormal basis (d, r) of the span of a layer's gradient, if it is sent."""
    gradient = layer.gradient(share)
    if gradient is None:
        return None
    _, S, V = torch.linalg.svd(gradient, full_matrices=False)
    line = SPAN_ROUNDINGS * layer.rounding(share) * float(S[0])
    basis: Tensor = V[line < S].float().T.contiguous()
    return basis


def distances(z: Tensor, basis: Tensor) -> Tensor:
    """Return the relative distance (…,) of vectors (…, d) from a span; of zero it is infinite."""
    z = z.float()
    left, size = z - (z @ basis) @ basis.T, z.norm(dim=-1)
    return torch.where(size > 0, left.norm(dim=-1) / size, math.inf)


def nearest_tokens(
    layer: FirstLayer,
    share: GradientShare,
    words: Sequence[int],
    length: int,
    kept: int = SPAN_KEPT,
) -> Nearest | None:
    """Return the tokens whose vectors lie nearest to the span of the layer's gradient.

    It is None if the layer sent no gradient.
    """
    basis = span_of(layer, share)
    if basis is None:
        return None
    width = len(basis)
    kept = kept if layer.ordered else width
    best = torch.full((0, length), math.inf)
    tokens = torch.zeros(0, length, dtype=torch.long)
    for chunk, z in layer.tables(words, length):
        far = distances(z, basis)  # (n, L)
        best = torch.cat([best, far])
        tokens = torch.cat([tokens, chunk[:, None].expand(-1, length)])
        order = best.argsort(0)[:kept]
        best, tokens = best.gather(0, order), tokens.gather(0, order)
    return Nearest(tokens, best, basis.shape[1], width)


def read_span(nearest: Nearest, check: TextResimulation | None, words: Sequence[int]) -> Text:
    """Return the text of one sample whose tokens lie in the span at their places."""
    if nearest.full:
        return Text((), tuple(words), False, FROM_SPAN, (
            f"the first attention layer's gradient has full rank {nearest.rank}: there are as many "
            "tokens as the layer is wide, or noise, and no token is excluded"
        ))  # fmt: skip
    inside = nearest.distance[0] <= SPAN_INSIDE
    length = int(inside.nonzero().max()) + 1 if bool(inside.any()) else 0
    if not length:
        message = "no token lies in the span of the first attention layer's gradient"
        return Text((), tuple(words), False, FROM_SPAN, message)
    tokens = nearest.tokens[0, :length].clone()
    misfit = math.inf
    if check is not None:
        tokens, misfit = _improved(tokens, nearest, check)
    explained = misfit <= SPAN_EXPLAINED
    places = tuple(
        _place(i, int(tokens[i]), nearest, explained, check, (tokens, misfit))
        for i in range(length)
    )
    return Text(places, tuple(words), explained, FROM_SPAN, _said(nearest, length, misfit))


def read_unordered(nearest: Nearest) -> Text:
    """Return the words in the span of a layer that words enter alike at every place.

    At most as many words as the span has dimensions are told, and only if all others are far off.
    """
    inside = nearest.distance[:, 0] <= SPAN_INSIDE
    words = sorted(nearest.tokens[inside, 0].tolist())
    outside = nearest.distance[~inside, 0]
    far = not len(outside) or float(outside.min()) > SPAN_WORSE * SPAN_INSIDE
    told = bool(words) and len(words) <= nearest.rank < nearest.width and far and len(outside) > 0
    message = (
        f"{len(words)} words lie in the span of the first attention layer's gradient; their order "
        "is not known, since a word enters that layer alike at every place"
        if told
        else "the span of the first attention layer's gradient does not tell its words apart"
    )
    return Text((), tuple(words) if told else (), False, FROM_SPAN, message)


def _improved(tokens: Tensor, nearest: Nearest, check: TextResimulation) -> tuple[Tensor, float]:
    """Return the text, with other near tokens where they explain the share better."""
    misfit, trials = check.misfit(tokens), 0
    distance = nearest.distance[:, : len(tokens)]
    doubt = (
        (distance[1] / distance[0].clamp_min(1e-9)).argsort().tolist() if len(distance) > 1 else []
    )
    for place in doubt:
        for other in nearest.tokens[:, place].tolist():
            if misfit <= SPAN_EXPLAINED or trials >= SPAN_TRIALS:
                return tokens, misfit
            if other == int(tokens[place]):
                continue
            tried = tokens.clone()
            tried[place] = other
            trials += 1
            now = check.misfit(tried)
            if now < misfit:
                tokens, misfit = tried, now
    return tokens, misfit


def _place(
    i: int,
    token: int,
    nearest: Nearest,
    explained: bool,
    check: TextResimulation | None,
    found: tuple[Tensor, float],
) -> Place:
    """Return what is known of one place: certain if the share excludes every other token."""
    options = tuple(nearest.tokens[:, i].tolist())
    far = nearest.distance[:, i]
    inside = float(far[0]) <= SPAN_INSIDE and token == options[0]
    alone = len(far) > 1 and float(far[1]) > SPAN_WORSE * max(float(far[0]), 1e-5)
    if not explained or check is None:
        likely = inside and alone
        return Place(i, token, Certainty.LIKELY if likely else Certainty.GUESS, options)
    if inside and alone and float(far[1]) > SPAN_INSIDE:
        return Place(i, token, Certainty.CERTAIN)
    tokens, misfit = found
    for other in options:
        if other != token:
            tried = tokens.clone()
            tried[i] = other
            if check.misfit(tried) <= SPAN_WORSE * max(misfit, 1e-6):
                return Place(i, token, Certainty.GUESS, options)
    return Place(i, token, Certainty.LIKELY, options)


def _said(nearest: Nearest, length: int, misfit: float) -> str:
    told = (
        "no label is known, so the text was not checked by computing its gradient again"
        if math.isinf(misfit)
        else f"the text's own gradient differs from the share by {misfit:.1e}"
    )
    return (
        f"tokens at {length} places lie in the span of rank {nearest.rank} of {nearest.width}; "
        f"{told}"
    )
