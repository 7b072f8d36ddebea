"""Read a text from the gradients of word and position embeddings.

Where a model adds a learned position ``P_i`` to each token's row of a table ``E``, the gradient of
the position is that at the token, ``∂L/∂P_i = δ_i``, and the row of a word sums those of its
places: ``∂L/∂E_w = c Σ δ_i`` over the places i of w. No names are consulted: a table and a
parameter are a plan if this holds on random tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from softleak.core.client import capture
from softleak.core.errors import SoftleakError, in_a_line
from softleak.core.forward import random_input, seeded, tables_read, watched_tables
from softleak.core.input_spec import Inputs, InputSpec, assembled, pieces
from softleak.core.loss import NextToken
from softleak.core.share import GradientShare
from softleak.core.subject import Subject
from softleak.inversion.results import Certainty, NoWay, Place, Text

TEXT_PROBE_RUNS = 2  # the number of random texts the equation is tried on
TEXT_PROBE_TOLERANCE = 256.0  # what may remain of a row, in units of rounding of the largest row
TEXT_PROBE_SEED = 0  # the seed of the texts


@dataclass(frozen=True)
class TextPlan:
    """Which gradients tell the words of a text."""

    words: str  # the table that the token ids point into, by the name of its parameter
    # The parameter that is added to the rows of the table; None if there is none, as with rotary
    # or relative positions.
    positions: str | None = None
    first: int = 0  # the row of ``positions`` that belongs to the first token
    factor: float = 1.0  # c, what the table's rows are multiplied by before positions are added
    empty: int | None = None  # the token whose row of the table gets no gradient, if there is one
    # Whether rows of the table without gradient are those of words that do not occur; a table that
    # is used elsewhere as well has gradients everywhere.
    sound: bool = True
    reason: str = ""  # why there are no positions, or the table is not sound; empty if all is well


def text_plan(subject: Subject) -> TextPlan | NoWay:
    """Return which gradients tell the words of a subject's texts, or why none do."""
    spec = subject.input_shape
    if not isinstance(spec, InputSpec) or spec.length is None:
        return NoWay("the input is not a sequence of tokens")
    try:
        return _plan(subject, spec)
    except SoftleakError as error:
        return NoWay(str(error))
    except Exception as error:  # the model's own code may raise anything
        return NoWay(f"the model cannot be probed: {in_a_line(error)}")


def _plan(subject: Subject, spec: InputSpec) -> TextPlan | NoWay:
    model = subject.model
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
                share = (
                    capture(model, x, loss=NextToken()) if subject.head.each_token
                    else capture(model, x, index % 2)
                )  # fmt: skip
            tables = [name for name, _ in tables_read(watch, ids[None])]
            runs.append((ids, share))
    if not tables:
        return NoWay("no nn.Embedding takes the token ids")
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
                yield replace(plan, factor=1.0 if abs(found[0] - 1) < 1e-4 else found[0])


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


# What tells rows of words from rows of noise.
ROWS_CROWDED = 0.98  # the part of a table's rows from which on they cannot all be words
ROWS_FEWEST = 256  # a table of fewer rows may be filled by one text
ROWS_SIGMAS = 8.0  # by how many standard deviations a row's length has to exceed that of noise
ROWS_GROWTH = 4.0  # the rounding of a row's entry, in units of the rounding of its number format


@dataclass(frozen=True, eq=False)
class FilledRows:
    """The rows of a gradient that are not empty."""

    index: Tensor  # (T,) their numbers
    value: Tensor  # (T, d) the rows, in float64
    noise: float  # the standard deviation of noise on each entry; zero if there is none
    rounding: float  # the relative error of an entry, from its number format
    # Whether nearly all rows of the table are filled. In a small table that may be one text or
    # noise, and only an equation that holds can tell which.
    crowded: bool = False

    def errors(self) -> Tensor:
        """Return the rounding (T,) of an entry of each row, beside its noise."""
        size: Tensor = self.value.norm(dim=1) / math.sqrt(self.value.shape[1])
        return self.rounding * size


def filled_rows(
    share: GradientShare, name: str, computed_in: torch.dtype, noise: float = 0.0
) -> FilledRows:
    """Return the rows of a gradient, as (T, d), that hold more than noise."""
    held = share[name].double()
    rows = held.reshape(-1, held.shape[-1])
    lengths = rows.norm(dim=1)
    noise = share.noise(name) or noise or _own_noise(lengths, rows.shape[1])
    width = rows.shape[1]
    line = noise * (math.sqrt(width) + ROWS_SIGMAS)
    index = (lengths > line).nonzero()[:, 0]
    rounding = ROWS_GROWTH * share.resolution(name, computed_in)
    return FilledRows(index, rows[index], noise, rounding, _crowded(lengths))


def _crowded(lengths: Tensor) -> bool:
    return float((lengths > 0).double().mean()) > ROWS_CROWDED


def _own_noise(lengths: Tensor, width: int) -> float:
    """Return the noise that crowded rows show by their median length; zero if few are filled."""
    if len(lengths) < ROWS_FEWEST or not _crowded(lengths):
        return 0.0
    return float(lengths.median()) / math.sqrt(width)


PLACES_SIGMAS = 8.0  # how many standard errors an entry of A may be off
PLACES_SMALLEST = 1e-4  # what an entry of A may be off in any case
PLACES_CUTOFF = 1e-10  # singular values of D below this part of the largest are not used
# Behind noise, by how much the log-likelihood of a word at a place has to exceed that of every
# other word.
PLACES_NATS = 20.0
# By how many bits the equations must outnumber the ways to place all words, where a word is known
# by one place whose gradient equals its own.
PLACES_SPARE_BITS = 64.0


PADDING = -1  # the word of a place whose token gets no gradient of its own


@dataclass(frozen=True, eq=False)
class Placed:
    """Which word, by its row of G, stands at each place that is known."""

    word: dict[int, int]  # the row by place; ``PADDING`` if it holds the token without gradient
    candidates: dict[int, tuple[int, ...]]  # the rows that may stand at the others, best first
    explained: bool  # whether the words known account for all of G


@dataclass(eq=False)
class _Puzzle:
    """What is left to explain while words are placed one after another."""

    left: Tensor  # (T, d) G without what was placed
    D: Tensor
    errors: Tensor  # (T,) the rounding of an entry of each row
    variance: Tensor  # (T,) that of the noise on it
    noise: float  # of an entry of D
    padded: bool
    open: list[int] = field(default_factory=list)
    word: dict[int, int] = field(default_factory=dict)

    def put(self, place: int, word: int) -> None:
        """Record the word of a place, and take the place's gradient off the word's."""
        self.open.remove(place)
        self.word[place] = word
        if word != PADDING:
            self.left[word] -= self.D[place]
            self.variance[word] += self.noise**2


def place_words(
    G: Tensor, D: Tensor, errors: Tensor, noise: tuple[float, float] = (0.0, 0.0), *, padded: bool
) -> Placed:
    """Return which word stands at each place.

    ``G`` (T, d) are the gradients of the words that occur, ``D`` (L, d) those of the places used,
    and ``errors`` (T,) the rounding of an entry of each row of G, its places included. ``noise`` is
    the standard deviation on each entry of G and of D; where ``padded``, a place may hold a token
    that gets no gradient of its own.
    """
    variance = torch.full_like(errors, noise[0] ** 2)
    puzzle = _Puzzle(G.clone(), D, errors, variance, noise[1], padded, list(range(len(D))))
    while puzzle.open:
        before = len(puzzle.open)
        for place, word in _settled(*_solved(puzzle), puzzle):
            puzzle.put(place, word)
        if len(puzzle.open) == before:
            for place, word in _equal(puzzle):
                puzzle.put(place, word)
        if len(puzzle.open) == before:
            break
    A, off = _solved(puzzle)
    fits = (A - 1).abs() <= off
    order = (A - 1).abs().argsort(0)
    candidates = {
        place: tuple(int(w) for w in order[:, k] if fits[w, k]) or (int(order[0, k]),)
        for k, place in enumerate(puzzle.open)
        if len(order)
    }
    rest = puzzle.left.norm(dim=1) / math.sqrt(G.shape[1])
    explained = not puzzle.open and bool((rest <= _lines(puzzle, 0.0)).all())
    return Placed(puzzle.word, candidates, explained)


def _solved(puzzle: _Puzzle) -> tuple[Tensor, Tensor]:
    """Return ``A`` (T, L') of the open places, and how far each entry may be off."""
    D = puzzle.D[puzzle.open]
    size = D.norm(dim=1, keepdim=True).clamp_min(1e-300)
    U, S, V = torch.linalg.svd(D / size, full_matrices=False)
    smallest = 3 * puzzle.noise * math.sqrt(D.shape[1]) / float(size.min()) if len(D) else 0.0
    kept = max(PLACES_CUTOFF * float(S[0]), smallest) < S if len(S) else S > 0
    inverse = (V[kept].T / S[kept]) @ U[:, kept].T  # (d, L')
    A = puzzle.left @ inverse / size.T
    # What the kept directions do not tell apart mixes the entries of a row, each 0 or 1.
    mixed = (torch.eye(len(D)).to(D) - U[:, kept] @ U[:, kept].T) * size / size.T
    blur = mixed.abs().sum(0) * (0 if bool(kept.all()) and len(S) == len(D) else 1)
    row = (puzzle.errors.square() + puzzle.variance + puzzle.noise**2).sqrt()
    off = PLACES_SIGMAS * row[:, None] * (inverse.norm(dim=0) / size[:, 0]) + blur
    return A, off + PLACES_SMALLEST


def _lines(puzzle: _Puzzle, noise: float) -> Tensor:
    """Return the largest root mean square (T,) of a row that errors alone explain."""
    spread = 1 + PLACES_SIGMAS / math.sqrt(2 * puzzle.D.shape[1])
    drawn = spread * (puzzle.variance + noise**2).sqrt()
    return (PLACES_SIGMAS * puzzle.errors).hypot(drawn)


def _settled(A: Tensor, off: Tensor, puzzle: _Puzzle) -> list[tuple[int, int]]:
    """Return the places at which only one word is possible."""
    one, zero = (A - 1).abs() <= off, A.abs() <= off
    sure, found = one & ~zero, []
    for k, place in enumerate(puzzle.open):
        certain, possible = sure[:, k].nonzero()[:, 0], one[:, k].nonzero()[:, 0]
        if len(certain) == 1:
            found.append((place, int(certain[0])))
        elif len(certain) == 0 and bool((one | zero)[:, k].all()):  # every entry is 0 or 1
            if len(possible) == 1 and not puzzle.padded:
                found.append((place, int(possible[0])))
            elif len(possible) == 0 and puzzle.padded:
                found.append((place, PADDING))
    return found


def _equal(puzzle: _Puzzle) -> list[tuple[int, int]]:
    """Return words whose gradient is that of one place, where this can be no coincidence.

    It is needed where places outnumber the equations, so that A is not determined as a whole. The
    equations that a match fulfils by chance are counted against the ways to place all words.
    """
    if puzzle.noise:
        return _likeliest(puzzle)
    D, left = puzzle.D[puzzle.open], puzzle.left
    S = torch.linalg.svdvals(D / D.norm(dim=1, keepdim=True).clamp_min(1e-300))
    rank = int((1e-3 * S[0] < S).sum()) if len(S) else 0
    width = math.sqrt(D.shape[1])
    apart = torch.cdist(D, D) + torch.diag(torch.full((len(D),), math.inf)).to(D)
    far = torch.cdist(left, D) / width  # (T, L')
    line = _lines(puzzle, puzzle.noise)
    found = []
    for k, place in enumerate(puzzle.open):
        near = (far[:, k] <= line).nonzero()[:, 0]
        if len(near) != 1:
            continue
        size = float(D[k].norm()) / width
        word = int(near[0])
        bits = rank * math.log2(max(size / max(float(line[word]), 1e-300), 1.0))
        twin = float(apart[k].min()) / width <= 2 * float(line[word])
        if not twin and bits >= len(D) + PLACES_SPARE_BITS:
            found.append((place, word))
    return found


def _likeliest(puzzle: _Puzzle) -> list[tuple[int, int]]:
    """Return words whose gradient is that of one place but for noise.

    The noise of an entry of their difference is known, so that every pair has a likelihood. It has
    to exceed that of other words at the place, and of the word at other places.
    """
    far = torch.cdist(puzzle.left, puzzle.D[puzzle.open]).square()  # (T, L')
    line = _lines(puzzle, puzzle.noise)
    variance = puzzle.variance + puzzle.noise**2 + puzzle.errors.square()
    unlikely = far / (2 * variance)[:, None] + puzzle.D.shape[1] / 2 * variance.log()[:, None]
    bound = puzzle.D.shape[1] * line.square()
    found = []
    for k, place in enumerate(puzzle.open):
        word = int(unlikely[:, k].argmin())
        others = (_without(unlikely[:, k], word), _without(unlikely[word], k))
        second = min((float(some.min()) for some in others if len(some)), default=math.inf)
        margin = second - float(unlikely[word, k])
        if float(far[word, k]) <= float(bound[word]) and margin >= PLACES_NATS:
            found.append((place, word))
    return found


def _without(values: Tensor, index: int) -> Tensor:
    return torch.cat([values[:index], values[index + 1 :]])


MOST_OPTIONS = 8  # tokens of which the best is still worth naming as a guess
FROM_EMBEDDINGS = "the gradients of the word and position embeddings"


def read_words(plan: TextPlan, share: GradientShare) -> FilledRows:
    """Return the rows of the word table's gradient that are not empty."""
    return filled_rows(share, plan.words, share[plan.words].dtype)


def read_embeddings(plan: TextPlan, share: GradientShare) -> Text:
    """Return the text of one sample, or what an update of several tells."""
    assert plan.positions is not None
    words = read_words(plan, share)
    dtype = share[plan.positions].dtype
    places = filled_rows(share, plan.positions, dtype, words.noise)
    placed = place_words(
        words.value / plan.factor, places.value, words.errors() / abs(plan.factor),
        (words.noise / abs(plan.factor), places.noise), padded=plan.empty is not None,
    )  # fmt: skip
    noisy = bool(words.noise or places.noise)
    best = Certainty.CERTAIN if placed.explained and not noisy else Certainty.LIKELY
    found: dict[int, Place] = {}
    for k, row in enumerate(places.index.tolist()):
        found[row - plan.first] = _place(row - plan.first, k, placed, words, plan, best)
    last = max((p for p in found), default=-1)
    every = (found.get(p) or Place(p, None, Certainty.EMPTY) for p in range(last + 1))
    unclear = noisy or (words.crowded and not placed.explained)
    known = () if unclear else tuple(words.index.tolist())
    return Text(tuple(every), known, placed.explained, FROM_EMBEDDINGS, _said(placed, words, noisy))


def _place(
    position: int, k: int, placed: Placed, words: FilledRows, plan: TextPlan, best: Certainty
) -> Place:
    if k in placed.word:
        word = placed.word[k]
        if word == PADDING:  # or a word whose row the client withheld: nothing tells them apart
            return Place(position, plan.empty, Certainty.LIKELY)
        return Place(position, int(words.index[word]), best)
    options = tuple(int(words.index[w]) for w in placed.candidates.get(k, ()))
    if not 0 < len(options) <= MOST_OPTIONS:
        return Place(position, None, Certainty.UNKNOWN, options)
    return Place(position, options[0], Certainty.GUESS, options)


def _said(placed: Placed, words: FilledRows, noisy: bool) -> str:
    count, open_ = len(placed.word), len(placed.candidates)
    if not len(words.index):
        return "noise hides every word" if noisy else "no word has a gradient"
    if placed.explained and not noisy:
        return (
            f"the rows of {len(words.index)} words are the sums of the gradients at {count} places"
        )
    if noisy:
        return (
            f"the gradients of {len(words.index)} words exceed the noise of {words.noise:.2g} on "
            f"every entry, and tell the words of {count} {'place' if count == 1 else 'places'}; "
            "words whose gradient is smaller cannot be seen"
        )
    return (
        f"{len(words.index)} words occur; they account for the gradients of {count} places, not "
        f"of {open_} others: the update mixes several texts, or was changed on its way, or the "
        "places cannot be told apart"
    )
