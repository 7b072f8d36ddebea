"""Short texts of results, for a prompt or a notebook: a few lines instead of all tensors."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator

from torch import Tensor

MOST_CLASSES = 3  # that a label names; the others are summed up
LEAST_WEIGHT = 0.005  # above the floor of a smoothed label, for a class to be named
WIDTH, MOST_LINES = 96, 3  # of a message


class ShortRepr:
    """A result that shows itself in the lines that ``_lines`` yields."""

    def _lines(self) -> Iterator[str]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def label_in_words(label: Tensor) -> str:
    """Return a soft label (C,) such as "class 3 (0.91), class 7 (0.09)"."""
    flat = label.detach().double().cpu()
    floor = float(flat.median()) if len(flat) > MOST_CLASSES else 0.0
    weights, classes = flat.topk(min(MOST_CLASSES, len(flat)))
    named = [
        (f"class {one} ({weight:.2f})", weight)
        for one, weight in zip(classes.tolist(), weights.tolist(), strict=True)
        if weight - floor >= LEAST_WEIGHT
    ]
    rest = float(flat.sum()) - sum(weight for _, weight in named)
    words = [word for word, _ in named]
    if not words:
        return f"about {1 / len(flat):.2g} for each of {len(flat)} classes"
    return ", ".join([*words, *([f"all others {rest:.2f}"] if rest >= LEAST_WEIGHT else [])])


def message_lines(message: str) -> list[str]:
    """Return a message in a few indented lines, cut off where there would be more."""
    return textwrap.wrap(
        message, WIDTH, initial_indent="  ", subsequent_indent="  ", max_lines=MOST_LINES,
        placeholder=" …",
    )  # fmt: skip
