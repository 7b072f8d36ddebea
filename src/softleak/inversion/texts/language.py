"""Read a whole text from what a causal language model sends of its next tokens.

What stands before a token says all that a causal model makes of it, so a text whose words have no
order yet (rotary positions) is read from left to right: the next word is the one whose vector lies
in the span of the second attention layer's gradient. The last token enters no prediction and has no
gradient of its own; it is the only label that the rest of the text leaves open, and every gradient
is linear in it. The whole text is then checked by computing its gradient again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from softleak.core.forward import TOKENS, recorded_inputs, run_batch
from softleak.core.input_spec import InputSpec
from softleak.core.loss import NextToken
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.results import Certainty, Place, Text
from softleak.inversion.texts.span import (
    SPAN_WORSE,
    FirstLayer,
    distances,
    filled,
    first_layer,
    nearest_tokens,
    second_layer,
    span_of,
)
from softleak.numerics.least_squares import TINY
from softleak.resimulation import Resimulation, exact_copy, resimulate_texts

NEXT_INSIDE = 2e-4  # the relative distance from the second span up to which a prefix is inside
NEXT_ROUNDINGS = 20.0  # of the layer's gradient, if they exceed that
MOST_PREFIXES = 16  # that are extended at a time, the nearest first
LAST_TENSORS = 2  # from which the last token is read: those nearest to the logits
LAST_EXPLAINED = 1e-2  # the part of these that the last token may leave


def whole_text(subject: Subject, share: GradientShare, found: Text) -> Text:
    """Return the text of which ``found`` tells what stands before its last token."""
    spec = subject.input_shape
    assert isinstance(spec, InputSpec)
    known = tuple(token for token in found.tokens if token is not None)
    if len(known) < len(found.tokens):
        return found
    stems = [Stem(known, found.certain)] if known else in_order(subject, share, found.words)
    read = []
    for stem in stems:
        token, clear = last_token(subject, share, stem.tokens)
        ids = (*stem.tokens, token)
        fit = resimulate_texts(subject, share, filled(spec, torch.tensor(ids)[None]))
        read.append((replace(stem, tokens=ids, clear=stem.clear and clear), fit))
    if not read:
        return found
    agreeing = [one for one in read if one[1].agree]
    stem, fit = min(agreeing or read, key=lambda one: _misfit(one[1]))
    if not fit.agree:
        return found if found.places else replace(found, message=f"{found.message}; {_said(fit)}")
    sure = Certainty.CERTAIN if stem.clear and len(agreeing) == 1 else Certainty.LIKELY
    held = found.places or (None,) * (len(stem.tokens) - 1)
    places = [
        one if one and one.certainty is Certainty.CERTAIN else Place(i, stem.tokens[i], sure)
        for i, one in enumerate((*held, None))
    ]
    sure_ones = (p.token for p in places if p.certainty is Certainty.CERTAIN)
    words = {*found.words, *(token for token in sure_ones if token is not None)}
    message = f"{found.message}; {_said(fit)}" if found.places else _said(fit)
    return Text(tuple(places), tuple(sorted(words)), True, found.method, message)


@dataclass(frozen=True)
class Stem:
    """The beginning of a text, and whether the share excludes every other one."""

    tokens: tuple[int, ...]
    clear: bool


def in_order(subject: Subject, share: GradientShare, words: Sequence[int]) -> list[Stem]:
    """Return all orders of words, used any number of times, that the second layer allows.

    Without positions a model tells a word from its repetition at the start by nothing, so there are
    mostly several.
    """
    first, layer = subject.once(first_layer), subject.once(second_layer)
    basis = None if layer is None else span_of(layer, share)
    if first is None or layer is None or basis is None or basis.shape[0] == basis.shape[1]:
        return []
    if not words:
        nearest = nearest_tokens(first, share, range(first.spec.tokens.below or 0), 1)
        words = () if nearest is None else nearest.inside(0)
    if not words:
        return []
    inside = max(NEXT_INSIDE, NEXT_ROUNDINGS * layer.rounding(share))
    found = extended(layer, basis, [words] * basis.shape[1], inside, MOST_PREFIXES)
    return sorted(found, key=lambda stem: -len(stem.tokens))[:MOST_PREFIXES]


def extended(
    layer: FirstLayer, basis: Tensor, options: Sequence[Sequence[int]], inside: float, most: int
) -> list[Stem]:
    """Return the texts of possible words at each place all of whose beginnings lie in a span.

    Those that no word continues come first. At most so many are continued at a time.
    """
    open_, done = [Stem((), True)], list[Stem]()
    for possible in options:
        words, longer = torch.tensor(possible, dtype=torch.long), list[Stem]()
        for stem in open_:
            before = torch.tensor(stem.tokens, dtype=torch.long).expand(len(words), -1)
            ids = torch.cat([before, words[:, None]], 1)
            far = distances(layer.embedded(ids)[:, -1], basis)
            near = far <= inside
            clear = stem.clear and not bool((far[~near] <= SPAN_WORSE * inside).any())
            longer += [Stem((*stem.tokens, w), clear) for w in words[near].tolist()]
            done += [] if bool(near.any()) else [stem]
        crowded = len(longer) > most
        open_ = [replace(stem, clear=stem.clear and not crowded) for stem in longer[:most]]
    return [stem for stem in done + open_ if stem.tokens]


def last_token(subject: Subject, share: GradientShare, stem: Sequence[int]) -> tuple[int, bool]:
    """Return the token behind a stem (n,), and whether no other explains what was sent.

    With ``M_w`` the gradient of a parameter near the logits for the last token w, the share holds
    ``s M_w``; the label enters as ``M_w = M_0 − Jᵀ W_w``, with J the derivative of the last hidden
    state. The scale s is fitted for each w.
    """
    model, head = subject.once(exact_copy), subject.head
    spec = subject.input_shape
    assert isinstance(spec, InputSpec)
    own = (head.weight_name, head.bias_name)
    usable = {n: p for n, p in model.named_parameters() if n in share and n not in own}
    chosen = list(usable)[-LAST_TENSORS:]
    ids = torch.tensor([stem])
    with torch.enable_grad(), recorded_inputs(model, head.name) as entered:
        logits, _ = run_batch(model, filled(spec, ids), (TOKENS,))
        hidden = entered[head.name][-1].reshape(len(stem), -1)[-1]
        loss = logits[0, -1].logsumexp(-1)
        if len(stem) > 1:
            loss = loss + (len(stem) - 1) * NextToken()(logits, ids)
        thetas = [usable[name] for name in chosen]
        start = parameters_to_vector(torch.autograd.grad(loss, thetas, retain_graph=True))
        eye = torch.eye(len(hidden), dtype=hidden.dtype)
        slopes = torch.autograd.grad(hidden, thetas, eye, is_grads_batched=True)
    J = torch.cat([one.flatten(1) for one in slopes], 1)  # (d, K)
    W = dict(model.named_parameters(remove_duplicate=False))[head.weight_name].detach()
    sent = parameters_to_vector(share[name].double() for name in chosen)
    along = start @ sent - W @ (J @ sent)
    moved = W @ (J @ start)
    size = start.square().sum() - 2 * moved + ((W @ (J @ J.T)) * W).sum(1)
    left = sent.square().sum() - along.clamp_min(0).square() / size.clamp_min(TINY)
    first, second = left.clamp_min(0).sqrt().topk(2, largest=False).values.tolist()
    clear = first <= LAST_EXPLAINED * float(sent.norm()) and second > SPAN_WORSE * first
    return int(left.argmin()), clear


def _misfit(fit: Resimulation) -> float:
    return float("inf") if fit.worst is None else fit.worst.misfit


def _said(fit: Resimulation) -> str:
    if fit.worst is None:
        return f"the text's own gradient cannot be computed: {fit.problem}"
    told = f"{fit.worst.misfit:.1f} times its rounding at {fit.worst.name}"
    if fit.agree:
        return f"the gradient of the whole text differs from the update by at most {told}"
    return f"no text was found whose gradient is the update: the nearest differs by {told}"
