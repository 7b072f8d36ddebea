"""This module says which word stands where, from the gradients of words and of positions.

With the rows ``G`` (T, d) of the words that occur and the rows ``D`` (L, d) of the places, ``G = A
D`` for a matrix ``A`` (T, L) of zeros and ones with one 1 in each column. ``A = G D⁺``, and an
entry is known if its error leaves only one of the two numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class PlaceSettings:
    """These settings say when a word is certain.

    Attributes:
        sigmas: how many standard errors an entry of A may be off.
        smallest: what an entry of A may be off in any case.
        cutoff: singular values of D below this part of the largest are not used.
        nats: behind noise, by how much the log-likelihood of a word at a place has to exceed
            that of every other word.
        spare_bits: by how many bits the equations must outnumber the ways to place all words,
            where a word is known by one place whose gradient equals its own.
    """

    sigmas: float = 8.0
    smallest: float = 1e-4
    cutoff: float = 1e-10
    nats: float = 20.0
    spare_bits: float = 64.0


PLACES = PlaceSettings()
PADDING = -1  # the word of a place whose token gets no gradient of its own


@dataclass(frozen=True, eq=False)
class Placed:
    """This says which word, by its row of G, stands at each place that is known.

    Attributes:
        word: the row of G by place; ``PADDING`` if the place holds the token without gradient.
        candidates: the rows of G that may stand at each place that is not known, best first.
        explained: whether the words known account for all of G.
    """

    word: dict[int, int]
    candidates: dict[int, tuple[int, ...]]
    explained: bool


@dataclass(eq=False)
class _Puzzle:
    """What is left to explain while words are placed one after another.

    ``left`` (T, d) is G without what was placed, ``errors`` (T,) the rounding of an entry of each
    of its rows, ``variance`` (T,) that of the noise on it, and ``noise`` that of an entry of D.
    """

    left: Tensor
    D: Tensor
    errors: Tensor
    variance: Tensor
    noise: float
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

    Args:
        G: (T, d) the gradients of the words that occur.
        D: (L, d) the gradients of the places that are used.
        errors: (T,) the rounding of an entry of each row of G, that of its places included.
        noise: the standard deviations of noise on each entry of G and of D.
        padded: whether a place may hold a token that gets no gradient of its own.
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
    kept = max(PLACES.cutoff * float(S[0]), smallest) < S if len(S) else S > 0
    inverse = (V[kept].T / S[kept]) @ U[:, kept].T  # (d, L')
    A = puzzle.left @ inverse / size.T
    # What the kept directions do not tell apart mixes the entries of a row, each 0 or 1.
    mixed = (torch.eye(len(D)).to(D) - U[:, kept] @ U[:, kept].T) * size / size.T
    blur = mixed.abs().sum(0) * (0 if bool(kept.all()) and len(S) == len(D) else 1)
    row = (puzzle.errors.square() + puzzle.variance + puzzle.noise**2).sqrt()
    off = PLACES.sigmas * row[:, None] * (inverse.norm(dim=0) / size[:, 0]) + blur
    return A, off + PLACES.smallest


def _lines(puzzle: _Puzzle, noise: float) -> Tensor:
    """Return the largest root mean square (T,) of a row that errors alone explain.

    Of d entries of noise it is known to a relative 1/√(2d), while rounding is only bounded.
    """
    spread = 1 + PLACES.sigmas / math.sqrt(2 * puzzle.D.shape[1])
    drawn = spread * (puzzle.variance + noise**2).sqrt()
    return (PLACES.sigmas * puzzle.errors).hypot(drawn)


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
        if not twin and bits >= len(D) + PLACES.spare_bits:
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
        if float(far[word, k]) <= float(bound[word]) and margin >= PLACES.nats:
            found.append((place, word))
    return found


def _without(values: Tensor, index: int) -> Tensor:
    return torch.cat([values[:index], values[index + 1 :]])
