"""Propose inputs that a network takes for the same, from what enters its first layers.

Two inputs that enter every first layer alike send the same share. So do two that enter a layer that
is used several times in another order. Neither takes a gradient to be seen: entries that enter by a
sine or a square, and parts that change places wherever they lie, are read from the inputs of the
layers alone. What is proposed here has to be checked with all equations.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jacrev

from softleak.core.forward import logits_of
from softleak.numerics.recorder import watched

GOLDEN = (5**0.5 - 1) / 2
AFFINE = 1e-9  # relative: a second difference below this is rounding
SOLVED = 1e-9  # relative: what an exchange may leave of what enters
ROUNDS = 8  # Newton steps towards an exchange; one if parts enter as they are
LARGEST_JACOBIAN = 1 << 25  # entries of the derivative of what enters; larger ones are not solved
MOST_PLACES = 12  # places of a layer all pairs of which are exchanged; of more, neighbours are
LADDER = 1.1  # between the distances of values that are tried for an entry
NEAREST, FARTHEST = 1e-3, 1e3  # of the inputs' range: the distances that are tried
NARROWINGS = 90  # of the interval around another value of an entry
LOWEST = 6  # the number of intervals that are narrowed for an entry

Entered = dict[str, list[Tensor]]  # what enters each first layer, call by call


@dataclass(frozen=True, eq=False)
class Rivals:
    """What enters the first layers of a network near one input (1, …)."""

    model: nn.Module  # in the mode of the client
    x: Tensor  # the input (1, …)

    def entered(self, x: Tensor, apart: bool = False) -> Entered:
        """Return what enters every layer with parameters; ``apart``: only straight from ``x``."""
        found: Entered = defaultdict(list)
        layers = {
            name: module for name, module in self.model.named_modules()
            if next(module.parameters(recurse=False), None) is not None
            and not any(module.children())
        }  # fmt: skip

        def record(name: str, given: tuple[Any, ...]) -> None:
            if given and isinstance(given[0], Tensor) and given[0].is_floating_point():
                found[name].append(given[0])

        with watched(layers, before=record, after=_detached if apart else None):
            logits = logits_of(self.model(x))
        if logits is not None:
            found["(logits)"].append(logits)
        return found

    def first(self) -> dict[str, list[int]]:
        """Return which calls of which layers see the input itself."""
        seen = self.entered(self.x.clone().requires_grad_(), apart=True)
        calls = {n: [k for k, one in enumerate(c) if one.requires_grad] for n, c in seen.items()}
        return {name: which for name, which in calls.items() if which}

    def proposals(self) -> Iterator[tuple[str, Tensor]]:
        """Yield other inputs (1, …) that may send the same, with what was done to them."""
        first = self.first()

        def parts(x: Tensor) -> list[Tensor]:
            seen = self.entered(x)
            return [part for n, which in first.items() for k in which for part in _rows(seen[n][k])]

        def response(flat: Tensor) -> Tensor:
            return torch.cat([one.flatten() for one in parts(flat.view_as(self.x))])

        names = [n for n, which in first.items() for _ in which]
        counts = [
            len(_rows(self.entered(self.x)[n][k])) for n, which in first.items() for k in which
        ]
        owners = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
        yield from _other_values(response, self.x)
        yield from _exchanges(response, parts(self.x), owners, self.x)


def _detached(_name: str, _given: tuple[Any, ...], output: object) -> object:
    return output.detach() if isinstance(output, Tensor) else output


def _rows(entered: Tensor) -> list[Tensor]:
    """Return the parts of what enters a layer that it treats alike, each on its own."""
    if entered.ndim in (2, 4, 5) or len(entered) > 1:
        return list(entered)
    return list(entered.flatten(0, -2)) if entered.ndim > 1 else [entered]


def _other_values(response: Callable[[Tensor], Tensor], x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield inputs with another value of one entry that enters as its own one does."""
    flat = x.flatten()
    here, spread = response(flat), max(float(flat.max() - flat.min()), 1e-6)
    generator = torch.Generator().manual_seed(0)
    off = torch.randn(len(flat), generator=generator, dtype=torch.double).to(flat) * spread
    if _is_affine(response, flat, here, off):
        return
    steps = int(math.log(FARTHEST / NEAREST, LADDER))
    ladder = spread * NEAREST * LADDER ** torch.arange(steps, dtype=torch.double)
    away = torch.cat([-ladder.flip(0), ladder]).tolist()
    for entry in range(len(flat)):
        step = torch.zeros_like(flat)
        step[entry] = 1.0
        if _is_affine(response, flat, here, step * spread):
            continue

        def missed(value: float, step: Tensor = step) -> float:
            return float((response(flat + value * step) - here).norm())

        sizes = [missed(value) for value in away]
        lowest = [
            k for k in range(1, len(away) - 1)
            if sizes[k] <= min(sizes[k - 1], sizes[k + 1]) and away[k - 1] * away[k + 1] > 0
        ]  # fmt: skip
        for k in sorted(lowest, key=sizes.__getitem__)[:LOWEST]:
            value = narrowed(missed, away[k - 1], away[k + 1])
            if missed(value) <= 1e-6 * max(sizes):
                yield "with another value of one entry", (flat + value * step).view_as(x)


def _is_affine(response: Callable[[Tensor], Tensor], x: Tensor, here: Tensor, off: Tensor) -> bool:
    """Return whether what enters changes along a line as a straight line does."""
    for size in (0.37, 1.0, 2.9):
        one, other = response(x + size * off), response(x - size * off)
        bent = (one + other - 2 * here).abs().max()
        if float(bent) > AFFINE * float((one - here).abs().max() + here.abs().max()):
            return False
    return True


def _exchanges(
    response: Callable[[Tensor], Tensor], parts: list[Tensor], owners: list[str], x: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield inputs of which two parts that enter the same layer change places."""
    places: dict[tuple[str, torch.Size], list[int]] = defaultdict(list)
    for k, (part, owner) in enumerate(zip(parts, owners, strict=True)):
        places[owner, part.shape].append(k)
    groups = [one for one in places.values() if len(one) > 1]
    size = sum(part.numel() for part in parts)
    if not groups or size * x.numel() > LARGEST_JACOBIAN:
        return
    flat = x.flatten()
    J = jacrev(response, chunk_size=256)(flat)
    inverse = torch.linalg.pinv(J, rtol=1e-9)
    here = torch.cat([part.flatten() for part in parts])
    for swapped in _swaps(groups):
        order = list(range(len(parts)))
        for i, j in swapped:
            order[i], order[j] = order[j], order[i]
        wanted = torch.cat([parts[k].flatten() for k in order])
        other = flat
        for _ in range(ROUNDS):
            other = other + inverse @ (wanted - response(other))
        left = (response(other) - wanted).norm()
        if float(left) <= SOLVED * float(here.norm()):
            yield "with two parts of it exchanged", other.view_as(x)


def _swaps(groups: list[list[int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield pairs of places that change at once: of one layer, or of all used as often."""
    for group in groups:
        near = pairwise(group)
        pairs = combinations(group, 2) if len(group) <= MOST_PLACES else near
        yield from ([pair] for pair in pairs)
    for count in {len(group) for group in groups}:
        alike = [group for group in groups if len(group) == count]
        if len(alike) > 1:
            for i, j in combinations(range(min(count, MOST_PLACES)), 2):
                yield [(group[i], group[j]) for group in alike]


def narrowed(misfit: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function of one number is least within an interval, by golden sections."""
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    one, other = misfit(left), misfit(right)
    for _ in range(NARROWINGS):
        if one < other:
            high, right, other = right, left, one
            left = high - GOLDEN * (high - low)
            one = misfit(left)
        else:
            low, left, one = left, right, other
            right = low + GOLDEN * (high - low)
            other = misfit(right)
    return (low + high) / 2
