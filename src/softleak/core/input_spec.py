"""What kind of input a model takes: one tensor, or several by keyword; and what pixels become."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from softleak.core.errors import DataError, ModelError

Shape: TypeAlias = tuple[int, ...]
Inputs: TypeAlias = Tensor | Mapping[str, Tensor]  # what a model is called with, batch included
POSITIONAL = ""  # the keyword of a tensor that is passed without one


@dataclass(frozen=True)
class InputPart:
    """One tensor of an input."""

    keyword: str  # the argument it is passed as; empty if it is the first one and has no keyword
    shape: Shape  # its shape without the batch dimension
    integer: bool = False  # whether it holds integers, as token ids and masks do
    # The number of rows of the table that its integers point into, a fact of the model. None if
    # they point into no table, as those of a mask.
    below: int | None = None


@dataclass(frozen=True)
class InputSpec:
    """An input that is not one tensor of real numbers; public, as a shape is."""

    parts: tuple[InputPart, ...]

    @property
    def length(self) -> int | None:
        """Return the number of tokens, if all parts are sequences of integers; else None."""
        sequences = all(part.integer and len(part.shape) == 1 for part in self.parts)
        lengths = {part.shape for part in self.parts}
        return self.parts[0].shape[0] if sequences and len(lengths) == 1 else None

    @property
    def tokens(self) -> InputPart:
        """Return the part that holds the token ids: the one with the largest table."""
        tables = [part for part in self.parts if part.below]
        if not tables:
            raise ModelError(
                "no embedding table of the model takes the integers of its input, so random ones "
                "cannot be drawn; use nn.Embedding for the table"
            )
        return max(tables, key=lambda part: part.below or 0)

    def of_length(self, length: int) -> InputSpec:
        """Return the specification of sequences of another length."""
        return InputSpec(tuple(replace(part, shape=(length,)) for part in self.parts))

    def alike(self, other: object) -> bool:
        """Return whether two inputs differ in nothing but the length of their sequences."""
        if not isinstance(other, InputSpec) or self.length is None or other.length is None:
            return self == other
        return self.of_length(1) == other.of_length(1)

    def __str__(self) -> str:
        return ", ".join(f"{part.keyword or 'input'} {part.shape}" for part in self.parts)


Layout: TypeAlias = Shape | InputSpec  # a shape stands for one tensor of real numbers


def entries(layout: Layout) -> int:
    """Return the number of entries of one input."""
    if isinstance(layout, tuple):
        return math.prod(layout)
    return sum(math.prod(part.shape) for part in layout.parts)


def layout_of(batched: Inputs, tables: Mapping[str, int]) -> Layout:
    """Return the layout of one input of a batch, whose integers point into ``tables``."""
    if isinstance(batched, Tensor) and batched.is_floating_point():
        return tuple(batched.shape[1:])
    parts = []
    for keyword, tensor in pieces(batched):
        integer = not tensor.is_floating_point()
        below = tables.get(keyword) if integer else None
        parts.append(InputPart(keyword, tuple(tensor.shape[1:]), integer, below))
    return InputSpec(tuple(parts))


def pieces(inputs: Inputs) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of an input by keyword, which is empty for a tensor alone."""
    if isinstance(inputs, Tensor):
        yield POSITIONAL, inputs
    else:
        yield from inputs.items()


def assembled(tensors: Mapping[str, Tensor]) -> Inputs:
    """Return tensors by keyword as a model is called with them: a tensor alone if it has none."""
    return tensors[POSITIONAL] if tensors.keys() == {POSITIONAL} else dict(tensors)


def random_tokens(spec: InputSpec, index: int, generator: torch.Generator) -> Inputs:
    """Return one random input: ids, masks of ones, noise; every other sequence is shorter."""
    spec.tokens  # noqa: B018 - it raises if nothing can be drawn
    if spec.length is not None and index % 2:
        spec = spec.of_length(max(spec.length * 2 // 3, 1))
    return assembled({part.keyword: _random_part(part, generator) for part in spec.parts})


def _random_part(part: InputPart, generator: torch.Generator) -> Tensor:
    if not part.integer:
        return torch.randn(part.shape, generator=generator)
    if part.below is None:
        return torch.ones(part.shape, dtype=torch.long)
    return torch.randint(part.below, part.shape, generator=generator)


@dataclass(frozen=True)
class Normalisation:
    """The map x -> (x - mean) / std, with one mean and one std per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    everywhere: bool = False  # whether one mean and one std are for all entries of any shape

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise DataError(
                f"Expected one mean and one std for each channel, "
                f"got {len(self.mean)} and {len(self.std)}."
            )
        if not all(math.isfinite(value) for value in (*self.mean, *self.std)):
            raise DataError(f"Means and stds must be finite, got {self.mean} and {self.std}.")
        if min(self.std) <= 0:
            raise DataError(f"Every std must be positive, got {self.std}.")

    def apply(self, x: Tensor) -> Tensor:
        """Return the network input of pixels (..., C, H, W) in [0, 1], in the same shape."""
        return (x - self._channels(self.mean, x)) / self._channels(self.std, x)

    def invert(self, x: Tensor) -> Tensor:
        """Return the pixels of a network input (..., C, H, W), in the same shape."""
        return x * self._channels(self.std, x) + self._channels(self.mean, x)

    def pixels(self, x: Tensor) -> Tensor:
        """Return the pixels of a network input in float64, on the CPU."""
        return self.invert(x.detach().cpu().double())

    @property
    def scale(self) -> Tensor:
        """Return what one unit of a network input is in pixels: (C, 1, 1), or () everywhere."""
        std = torch.tensor(self.std, dtype=torch.double)
        return std[0] if self.everywhere else std.view(-1, 1, 1)

    def _channels(self, values: tuple[float, ...], x: Tensor) -> Tensor:
        if self.everywhere:
            return x.new_tensor(values[0])
        if x.dim() < 3 or x.shape[-3] != len(values):
            raise DataError(
                f"Expected images (..., {len(values)}, H, W) for this normalisation, "
                f"got {tuple(x.shape)}."
            )
        return x.new_tensor(values).reshape(-1, 1, 1)


LIKE_PIXELS = (-0.1, 1.1)  # an input within these is taken for pixels if nobody says
AS_THEY_ARE = Normalisation((0.0,), (1.0,), everywhere=True)


def normalisation_of(x: Tensor, known: Normalisation | None) -> Normalisation:
    """Return how pixels became an input: as it is known, or as if they filled their range.

    Args:
        x: an input, or the inputs (B, …) of a batch, which then have one range.
        known: what is known of it, if anything is.
    """
    if known is not None:
        return known
    low, high = float(x.min()), float(x.max())
    within = LIKE_PIXELS[0] <= low and high <= LIKE_PIXELS[1]
    if within or not math.isfinite(high - low):
        return AS_THEY_ARE
    scale = 1 / max(high - low, 1e-12)
    return Normalisation((-low * scale,), (scale,), everywhere=True)


CIFAR10_NORM = Normalisation((0.4915, 0.4823, 0.4468), (0.2470, 0.2435, 0.2616))
IMAGENET_NORM = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
