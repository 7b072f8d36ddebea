"""The truth, if the user has it. It is read after the answer, to score it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from softleak import io as tensor_files
from softleak.audit.findings import InputFinding, PixelMap, Score
from softleak.audit.metrics import distance_to_set, label_error, psnr
from softleak.core.errors import DataError
from softleak.core.input_spec import Layout, Normalisation
from softleak.core.results import Recovery


@dataclass(frozen=True, eq=False)
class Truth:
    """The label, soft or as an index, and the input as the model saw it, if known."""

    label: Tensor | None = None
    input: Tensor | None = None

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Truth:
        """Read a file of tensors named ``label`` and ``input``, in the formats of a share."""
        held = tensor_files.load(Path(path)).tensors
        if not held.keys() & {"label", "input"}:
            raise DataError(
                f"expected tensors named 'label' or 'input' in {Path(path).name}, found "
                f"{', '.join(sorted(held)[:6])}"
            )
        return cls(held.get("label"), held.get("input"))

    def save(self, path: str | PathLike[str]) -> None:
        """Write a file that ``load`` reads."""
        held = {"label": self.label, "input": self.input}
        kept = {k: v for k, v in held.items() if v is not None}
        tensor_files.save(Path(path), tensor_files.Content(kept))

    def fitted(self, classes: int, input_shape: Layout | None) -> Truth:
        """Return this truth with a soft label and the model's input shape; raise if it does not."""
        label = None if self.label is None else _soft(self.label, classes)
        given = self.input
        if given is None or not isinstance(input_shape, tuple):
            return Truth(label, given)
        if given.numel() != math.prod(input_shape):
            raise DataError(
                f"the true input is {tuple(given.shape)}, the model takes {input_shape}"
            )
        return Truth(label, given.reshape(input_shape))

    def score(
        self, recovery: Recovery, found: InputFinding, normalisation: Normalisation | None
    ) -> Score:
        """Return how far the answers are from this truth, which was ``fitted``."""
        pixels = None
        if self.input is not None and not self.input.is_floating_point():
            return self._score_text(self.input, recovery, found)
        if self.input is not None:
            pixels = (found.to_pixels or PixelMap.of(self.input, normalisation))(self.input)
        scored = pixels is not None and found.pixels is not None
        return Score(
            self.label,
            None if self.label is None else label_error(recovery, self.label),
            None if self.label is None else distance_to_set(recovery, self.label),
            pixels,
            psnr(found.pixels, pixels) if scored else None,  # type: ignore[arg-type]
        )

    def _score_text(self, words: Tensor, recovery: Recovery, found: InputFinding) -> Score:
        """Return how many words were found in their places."""
        tokens = words.flatten().tolist()
        return Score(
            self.label,
            None if self.label is None else label_error(recovery, self.label),
            None if self.label is None else distance_to_set(recovery, self.label),
            tokens_true=tuple(tokens),
            tokens_right=_tokens_right(tokens, found),
        )


def _tokens_right(tokens: list[int], found: InputFinding) -> float | None:
    """Return the part of a text's tokens that was found in its place."""
    if found.text is None or not tokens:
        return None
    told = {place.position: place.token for place in found.text.places}
    return sum(told.get(i) == token for i, token in enumerate(tokens)) / len(tokens)


def _soft(label: Tensor, classes: int) -> Tensor:
    """Return a class index as a one-hot label."""
    if label.numel() == 1 and classes > 1:
        if not 0 <= int(label) < classes:
            raise DataError(f"the true class is {int(label)}, the model has {classes}")
        return F.one_hot(label.reshape(()).long(), classes).to(torch.double)
    if label.numel() != classes:
        raise DataError(f"the true label has {label.numel()} entries, the model {classes} classes")
    return label.double().flatten()
