"""This module finds the texts of a batch in a model whose tokens read in both directions.

Every token of a text changes what all others become in the second layer, so a text cannot be read
from left to right. But the fewer of its tokens are foreign, the nearer all of them come to the
span of that layer's gradient: from a mixture of several texts, exchanging one token after another
leads to one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Far = Callable[[Tensor], Tensor]  # texts (B, L) to the distance (B, L) of each token from the span


@dataclass(frozen=True)
class DescentSettings:
    """These settings bound the search.

    Attributes:
        starts: the number of mixtures that are improved at a time.
        sweeps: how often each place of a text is tried again at most.
        rounds: how often new mixtures are drawn for texts of one length.
        crowded: the mean number of tokens that are possible at a place from which on mixtures
            lead nowhere, and nothing is tried.
        fresh: the part of a new mixture's tokens that no text found so far has, where possible.
        seed: the seed of the mixtures.
    """

    starts: int = 16
    sweeps: int = 8
    rounds: int = 3
    crowded: float = 8.0
    fresh: float = 0.85
    seed: int = 0


DESCENT = DescentSettings()


def both_ways(
    far: Far, options: list[list[int]], inside: float, wanted: int | None
) -> list[list[int]]:
    """Return the texts all of whose tokens lie in the span of the second layer.

    Args:
        far: how far each token of a text is from that span.
        options: the tokens that are possible at each place.
        inside: the distance up to which a token counts as inside.
        wanted: the number of texts, if it is known.
    """
    if sum(map(len, options)) > DESCENT.crowded * len(options):
        return []
    generator = torch.Generator().manual_seed(DESCENT.seed)
    found: list[list[int]] = []
    for _ in range(DESCENT.rounds):
        for length in _lengths(options):
            mixtures = _mixtures(options[:length], found, generator)
            for ids in _improved(far, options, mixtures, inside):
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
        fresh = torch.rand(DESCENT.starts, generator=generator) < DESCENT.fresh
        first, second = _drawn(new or some, generator), _drawn(some, generator)
        columns.append(torch.where(fresh, first, second))
    return torch.stack(columns, 1)


def _drawn(tokens: list[int], generator: torch.Generator) -> Tensor:
    return torch.tensor(tokens)[torch.randint(len(tokens), (DESCENT.starts,), generator=generator)]


def _improved(far: Far, options: list[list[int]], ids: Tensor, inside: float) -> list[list[int]]:
    """Return the texts that mixtures (starts, L) become, as far as they end inside the span."""
    for _ in range(DESCENT.sweeps):
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
    texts: list[list[int]] = unique[far(unique).amax(1) <= inside].tolist()
    return texts
