"""What is known of a text, and which gradients tell its words, found by running the model.

Where a model adds a learned position ``P_i`` to each token's row of a table ``E``, the gradient of
the position is that at the token, ``∂L/∂P_i = δ_i``, and the row of a word sums those of its
places: ``∂L/∂E_w = c Σ δ_i`` over the places i of w. No names are consulted: a table and a
parameter are a plan if this holds on random tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn

from softleak.core.client import capture
from softleak.core.errors import SoftleakError, in_a_line
from softleak.core.forward import random_input, seeded, watched_tables
from softleak.core.input_spec import Inputs, InputSpec, assembled, pieces
from softleak.core.share import GradientShare
from softleak.core.subject import Subject


class Certainty(Enum):
    """How much is known of one place of a text. Only ``CERTAIN`` is a proof."""

    CERTAIN = "no other token explains the gradient"
    LIKELY = "the share carries noise, or was not explained as a whole: this token fits best"
    GUESS = "several tokens fit, or none does: this one fits best"
    UNKNOWN = "no token could be told"
    EMPTY = "the model did not use this place: it is padding"


@dataclass(frozen=True)
class Place:
    """One place of a text.

    Attributes:
        position: its number, from 0, as the model counts positions.
        token: the token that stands there, None if it is empty or not known.
        certainty: how much is known of it.
        candidates: the tokens that may stand there, if it is not certain.
    """

    position: int
    token: int | None
    certainty: Certainty
    candidates: tuple[int, ...] = ()


@dataclass(frozen=True)
class Text:
    """A text as it was read from a share.

    Attributes:
        places: its places in order; padding at the end is left out.
        words: the tokens that occur somewhere in the update for certain, in rising order.
        explained: whether one text explains all of the gradients that were looked at.
        method: what the words were read from, in a phrase.
        message: what was found and what stays open, in sentences.
    """

    places: tuple[Place, ...]
    words: tuple[int, ...]
    explained: bool
    method: str
    message: str

    @property
    def tokens(self) -> tuple[int | None, ...]:
        """Return the token at each place, None where there is none or it is not known."""
        return tuple(place.token for place in self.places)

    @property
    def certain(self) -> bool:
        """Return whether every place that the model used is certain."""
        used = [place for place in self.places if place.certainty is not Certainty.EMPTY]
        return bool(used) and all(place.certainty is Certainty.CERTAIN for place in used)

    def count(self, *certainties: Certainty) -> int:
        """Return how many places have one of these certainties."""
        return sum(place.certainty in certainties for place in self.places)


# What decides whether a table and a parameter tell words and places.
TEXT_PROBE_RUNS = 2  # the number of random texts the equation is tried on
TEXT_PROBE_TOLERANCE = 256.0  # what may remain of a row, in units of rounding of the largest row
TEXT_PROBE_SEED = 0  # the seed of the texts


@dataclass(frozen=True)
class TextPlan:
    """Which gradients tell the words of a text.

    Attributes:
        words: the table that the token ids point into, by the name of its parameter.
        positions: the parameter that is added to the rows of the table; None if there is none,
            as with rotary or relative positions.
        first: the row of ``positions`` that belongs to the first token.
        factor: c, what the table's rows are multiplied by before positions are added.
        empty: the token whose row of the table gets no gradient, if there is one.
        sound: whether rows of the table without gradient are those of words that do not occur;
            a table that is used elsewhere as well has gradients everywhere.
        reason: why there are no positions, or the table is not sound; empty if all is well.
    """

    words: str
    positions: str | None = None
    first: int = 0
    factor: float = 1.0
    empty: int | None = None
    sound: bool = True
    reason: str = ""


@dataclass(frozen=True)
class NoText:
    """Why the input of a model is not read as a text."""

    reason: str


def text_plan(subject: Subject) -> TextPlan | NoText:
    """Return which gradients tell the words of a subject's texts, or why none do."""
    spec = subject.input_shape
    if not isinstance(spec, InputSpec) or spec.length is None:
        return NoText("the input is not a sequence of tokens")
    try:
        return _plan(subject.model, spec)
    except SoftleakError as error:
        return NoText(str(error))
    except Exception as error:  # the model's own code may raise anything
        return NoText(f"the model cannot be probed: {in_a_line(error)}")


def _plan(model: nn.Module, spec: InputSpec) -> TextPlan | NoText:
    keyword = spec.tokens.keyword
    generator = torch.Generator().manual_seed(TEXT_PROBE_SEED)
    runs: list[tuple[Tensor, GradientShare]] = []
    tables: list[str] = []
    trainable = [n for n, p in model.named_parameters() if not p.requires_grad]
    with seeded(TEXT_PROBE_SEED, next(model.parameters())):
        for index in range(TEXT_PROBE_RUNS):
            x = _distinct(random_input(spec, index, generator), spec, generator)
            ids = dict(pieces(x))[keyword]
            with watched_tables(model) as watch:
                share = capture(model, x, index % 2)
            tables = [name for name, _ in watch.read(ids[None])]
            runs.append((ids, share))
    if not tables:
        return NoText("no nn.Embedding takes the token ids")
    table = model.get_submodule(tables[0])
    words = f"{tables[0]}.weight" if tables[0] else "weight"
    if words in trainable or not all(words in share for _, share in runs):
        return TextPlan(words, sound=False, reason=f"{words} is frozen: it has no gradient")
    empty = table.padding_idx if isinstance(table, nn.Embedding) else None
    if not all(_sound(ids, share[words]) for ids, share in runs):
        return TextPlan(
            words, empty=empty, sound=False,
            reason=f"{words} is used elsewhere in the model too, so its gradient has rows of "
            "words that do not occur",
        )  # fmt: skip
    found = next(_positions(words, empty, runs), None)
    return found or TextPlan(
        words, empty=empty,
        reason="no learned position is added to the words (positions may be rotary, relative or "
        "fixed), so the gradient does not tell their order",
    )  # fmt: skip


def _distinct(x: Inputs, spec: InputSpec, generator: torch.Generator) -> Inputs:
    """Return the input with tokens that all differ, where the table has enough of them."""
    part = spec.tokens
    held = dict(pieces(x))
    ids = held[part.keyword]
    if (part.below or 0) >= ids.numel():
        held[part.keyword] = torch.randperm(part.below or 0, generator=generator)[: ids.numel()]
    return assembled(held)


def _sound(ids: Tensor, gradient: Tensor) -> bool:
    """Return whether only rows of the words that occur have a gradient."""
    rows = gradient.abs().amax(1) > 0
    return not bool(rows[~torch.isin(torch.arange(len(rows)), ids)].any())


def _positions(
    words: str, empty: int | None, runs: list[tuple[Tensor, GradientShare]]
) -> Iterator[TextPlan]:
    """Yield the plans whose equation holds on every run."""
    width = runs[0][1][words].shape[1]
    for name, gradient in runs[0][1].items():
        if name == words or gradient.ndim < 2 or gradient.shape[-1] != width:
            continue
        rows = gradient.reshape(-1, width).abs().amax(1) > 0
        if not bool(rows.any()):
            continue
        for first in range(min(int(rows.nonzero()[0]) + 1, 16)):
            plan = TextPlan(words, name, first, 1.0, empty)
            found = [_fit(plan, ids, share) for ids, share in runs]
            if all(found) and all(abs(c / found[0] - 1) < 1e-3 for c in found):
                c = 1.0 if abs(found[0] - 1) < 1e-4 else found[0]
                yield TextPlan(words, name, first, c, empty)


def _fit(plan: TextPlan, ids: Tensor, share: GradientShare) -> float:
    """Return c of one run, 0 if the equation does not hold on it."""
    assert plan.positions is not None
    E = share[plan.words].double()
    P = share[plan.positions].double().reshape(-1, E.shape[1])
    if len(P) < plan.first + len(ids):
        return 0.0
    kept = ids != (-1 if plan.empty is None else plan.empty)
    delta = P[plan.first : plan.first + len(ids)][kept]
    made = torch.zeros_like(E).index_add(0, ids[kept], delta)
    size = float(made.square().sum())
    c = float((made * E).sum()) / size if size else 0.0
    eps = torch.finfo(share[plan.words].dtype).eps
    left = (E - c * made).norm(dim=1).amax()
    sizes = (abs(c) * made.norm(dim=1)).amax()
    return c if left <= TEXT_PROBE_TOLERANCE * eps * sizes else 0.0
