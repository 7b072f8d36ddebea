"""Read words from the first attention layer, where embeddings send no gradient.

The gradient of the layer's weight spans the vectors of the tokens that entered it, so a token at a
place is possible only if its vector lies in that span (the idea of DAGER, NeurIPS 2024). Tokens at
wrong places may lie in it too, so the text is checked by computing its gradient again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn

from softleak.core.errors import ModelError
from softleak.core.forward import CLASSES, TOKENS, forward_one, random_input, run_batch, watched
from softleak.core.input_spec import Inputs, InputSpec, assembled, pieces
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.results import Certainty, Place, Text
from softleak.resimulation import relative_misfit

Misfit = Callable[[Tensor], float]  # what a text (L,) leaves of the share, relative to its size

CHUNK_ENTRIES = 1 << 24  # entries of embedded tokens that are computed at a time


class _Enough(Exception):
    """End a run of the model once the layer was reached."""


@dataclass(frozen=True, eq=False)
class FirstLayer:
    """The layer that reads embedded tokens first."""

    model: nn.Module  # the whole model
    spec: InputSpec  # what its inputs look like
    modules: tuple[str, ...]  # the layers that read the same vectors, as query, key and value do
    weights: dict[str, bool]  # their parameters; True if a gradient is (in, out), not (out, in)

    def gradient(self, share: GradientShare) -> Tensor | None:
        """Return the gradients of the weights, one below the other (rows, d); None if none is sent.

        Each has length one, since each is rounded relative to its own size: those of queries and
        keys may be far smaller than those of values.
        """
        turned = [(n, t) for n, t in self.weights.items() if n in share and bool(share[n].any())]
        sent = [(share[name].T if turn else share[name]).double() for name, turn in turned]
        return torch.cat([g / g.norm() for g in sent]) if sent else None

    def rounding(self, share: GradientShare) -> float:
        """Return the relative rounding of the gradients, by their number format and their noise.

        Noise σ on every entry of a matrix (m, n) has a largest singular value of ``σ (√m + √n)``.
        """
        sent = {n: share[n] for n in self.weights if n in share and bool(share[n].any())}
        noise = [
            share.noise(n) * sum(side**0.5 for side in g.shape) / float(g.double().norm())
            for n, g in sent.items()
        ]
        return max(max(torch.finfo(g.dtype).eps for g in sent.values()), math.hypot(*noise))

    def embedded(self, ids: Tensor) -> Tensor:
        """Return the vectors (B, L, d) of tokens (B, L) as they enter the layer."""
        return entering(self.model, self.modules[0], filled(self.spec, ids))

    @property
    def ordered(self) -> bool:
        """Return whether a token's vector depends on its place, as with rotary ones it does not."""
        first, second = self.embedded(torch.zeros(1, 2, dtype=torch.long))[0]
        return bool((first - second).abs().max() > 1e-6 * first.abs().max())

    def tables(self, words: Sequence[int], length: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield words (n,), a few at a time, with their vectors (n, L, d) at every place."""
        width = self.embedded(torch.zeros(1, length, dtype=torch.long)).shape[-1]
        step = max(CHUNK_ENTRIES // (length * width), 1)
        for chunk in torch.split(torch.as_tensor(words), step):
            yield chunk, self.embedded(chunk[:, None].expand(-1, length))


def first_layer(subject: Subject) -> FirstLayer | None:
    """Return the layer of a subject's model that reads embedded tokens, if there is one."""
    spec = subject.input_shape
    if not isinstance(spec, InputSpec) or spec.length is None or spec.length < 3:
        return None
    try:
        return _found(subject, spec, spec.length)
    except Exception:  # the model's own code may raise anything, and then nothing is known of it
        return None


def second_layer(subject: Subject) -> FirstLayer | None:
    """Return the next layer of the same kind: what enters it depends on the whole text."""
    first = subject.once(first_layer)
    if first is None:
        return None
    seen = _inputs(subject.model, random_input(first.spec, 0, torch.Generator().manual_seed(0)))
    parameters = subject.parameters
    shapes = [parameters[name].shape for name in first.weights]
    for group in _groups(seen, [n for n in seen if n not in first.modules]).values():
        weights = dict(_weight(subject.model, name) for name in group)
        if [parameters[name].shape for name in weights] == shapes:
            return FirstLayer(subject.model, first.spec, tuple(group), weights)
    return None


def _found(subject: Subject, spec: InputSpec, length: int) -> FirstLayer | None:
    """Return the layers whose input at each place depends on the token there alone."""
    generator = torch.Generator().manual_seed(0)
    x = random_input(spec, 0, generator)
    runs = [_inputs(subject.model, x)]
    places, held = (0, length - 1), dict(pieces(x))
    for place in places:
        ids = held[spec.tokens.keyword].clone()
        ids[place] = (ids[place] + 1) % (spec.tokens.below or 2)
        runs.append(_inputs(subject.model, assembled({**held, spec.tokens.keyword: ids})))
    alone = [n for n in runs[0] if all(n in run for run in runs)]
    alone = [n for n in alone if _by_itself([run[n] for run in runs], places)]
    groups = _groups(runs[0], alone)
    if not groups:
        return None
    chosen = max(groups.values(), key=len)
    weights = dict(_weight(subject.model, name) for name in chosen)
    return FirstLayer(subject.model, spec, tuple(chosen), weights)


def _groups(seen: dict[str, Tensor], names: list[str]) -> dict[int, list[str]]:
    """Return layers that read the same vectors, in the order in which they are called."""
    groups: dict[int, list[str]] = {}
    for name in names:
        twin = next((k for k, group in groups.items() if _alike(seen, group[0], name)), None)
        groups.setdefault(len(groups) if twin is None else twin, []).append(name)
    return groups


def filled(spec: InputSpec, ids: Tensor) -> Inputs:
    """Return an input with these token ids (B, L): masks of ones, and zeros for the rest."""
    rest = {part.keyword: torch.full_like(ids, 0 if part.below else 1) for part in spec.parts}
    return assembled({**rest, spec.tokens.keyword: ids})


def entering(model: nn.Module, name: str, x: Inputs) -> Tensor:
    """Return what enters a layer (B, L, d) when the model runs on a batch."""
    seen: list[Tensor] = []

    def look(_: str, given: tuple[Tensor, ...]) -> None:
        seen.append(given[0].detach())
        raise _Enough

    with watched({name: model.get_submodule(name)}, before=look):
        try:
            run_batch(model, x)
        except ModelError:
            if not seen:
                raise
    return seen[0]


def _inputs(model: nn.Module, x: Inputs) -> dict[str, Tensor]:
    """Return what enters each layer (1, L, d) with a matrix that vectors are multiplied by."""
    seen: dict[str, Tensor] = {}

    def look(name: str, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], Tensor) and given[0].ndim == 3:
            seen.setdefault(name, given[0].detach())

    readers = {
        name: module
        for name, module in model.named_modules()
        if not isinstance(module, nn.Embedding)
        and any(p.ndim == 2 for p in module.parameters(recurse=False))
    }
    with watched(readers, before=look), torch.enable_grad():
        forward_one(model, x, (CLASSES, TOKENS))
    return seen


def _by_itself(seen: list[Tensor], places: tuple[int, int]) -> bool:
    """Return whether a changed token changes its own vector and no other."""
    first = seen[0][0]
    for other, place in zip(seen[1:], places, strict=True):
        if other.shape != seen[0].shape or len(first) <= max(place, 1):
            return False
        moved = (other[0] - first).abs().amax(-1)
        rest = torch.cat([moved[:place], moved[place + 1 :]])
        if not float(moved[place]) > 0 or float(rest.max()) > 1e-6 * float(moved[place]):
            return False
    return True


def _alike(run: dict[str, Tensor], one: str, other: str) -> bool:
    return run[one].shape == run[other].shape and bool(torch.equal(run[one], run[other]))


def _weight(model: nn.Module, name: str) -> tuple[str, bool]:
    """Return the parameter of a layer's matrix, and whether it is (in, out)."""
    module = model.get_submodule(name)
    if isinstance(module, nn.MultiheadAttention):
        return f"{name}.in_proj_weight", False
    key = next(k for k, p in module.named_parameters(recurse=False) if p.ndim == 2)
    return f"{name}.{key}", not isinstance(module, nn.Linear)


MOST_TEXTS = 4  # of which every order of labels is tried


def batch_misfit(
    model: nn.Module, spec: InputSpec, share: GradientShare, texts: Sequence[Sequence[int]],
    labels: Tensor,
) -> float:  # fmt: skip
    """Return what several texts leave of a share, with the order of labels (B, C) that fits best.

    It is infinite if there is not one label for each text. Shorter texts are padded as the model's
    own configuration says, with the token 0 if it has none.
    """
    if len(texts) != len(labels) or len(texts) > MOST_TEXTS:
        return math.inf
    x = _padded(spec, texts, getattr(getattr(model, "config", None), "pad_token_id", None) or 0)
    orders = permutations(range(len(labels)))
    return min(relative_misfit(model, share, x, labels[list(order)]) for order in orders)


def _padded(spec: InputSpec, texts: Sequence[Sequence[int]], empty: int) -> Inputs:
    """Return a batch of texts of different lengths, with masks of zeros behind their ends."""
    length = max(map(len, texts))
    ids = torch.tensor([[*text, *[empty] * (length - len(text))] for text in texts])
    used = torch.tensor([[1] * len(text) + [0] * (length - len(text)) for text in texts])
    masks = {part.keyword: used for part in spec.parts if part.below is None}
    return assembled({**dict(pieces(filled(spec, ids))), **masks})


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

    def inside(self, place: int) -> list[int]:
        """Return the tokens that are possible at a place."""
        found: list[int] = self.tokens[self.distance[:, place] <= SPAN_INSIDE, place].tolist()
        return found

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
    layer: FirstLayer, share: GradientShare, words: Sequence[int], length: int,
    kept: int = SPAN_KEPT,
) -> Nearest | None:  # fmt: skip
    """Return the tokens whose vectors lie nearest to the span of the layer's gradient."""
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


def read_span(nearest: Nearest, check: Misfit | None, words: Sequence[int]) -> Text:
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
    words = sorted(nearest.inside(0))
    outside = nearest.distance[nearest.distance[:, 0] > SPAN_INSIDE, 0]
    far = not len(outside) or float(outside.min()) > SPAN_WORSE * SPAN_INSIDE
    told = bool(words) and len(words) <= nearest.rank < nearest.width and far and len(outside) > 0
    message = (
        f"{len(words)} words lie in the span of the first attention layer's gradient; their order "
        "is not known, since a word enters that layer alike at every place"
        if told
        else "the span of the first attention layer's gradient does not tell its words apart"
    )
    return Text((), tuple(words) if told else (), False, FROM_SPAN, message)


def _improved(tokens: Tensor, nearest: Nearest, check: Misfit) -> tuple[Tensor, float]:
    """Return the text, with other near tokens where they explain the share better."""
    misfit, trials = check(tokens), 0
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
            now = check(tried)
            if now < misfit:
                tokens, misfit = tried, now
    return tokens, misfit


def _place(
    i: int, token: int, nearest: Nearest, explained: bool, check: Misfit | None,
    found: tuple[Tensor, float],
) -> Place:  # fmt: skip
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
    others = (other for other in options if other != token)
    rivals = (torch.cat([tokens[:i], tokens.new_tensor([o]), tokens[i + 1 :]]) for o in others)
    fits = any(check(tried) <= SPAN_WORSE * max(misfit, 1e-6) for tried in rivals)
    return Place(i, token, Certainty.GUESS if fits else Certainty.LIKELY, options)


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
